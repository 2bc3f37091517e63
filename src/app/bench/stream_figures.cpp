#include "app/bench/bench_client.hpp"
#include "app/bench/bench_groups.hpp"
#include "app/bench/bench_installation.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <map>
#include <stdexcept>
#include <string>

namespace rankwise::app {

namespace {

/// What the rounds of one server gave.
struct stream_samples {
  std::vector<double> cpu_us;
  std::vector<double> gap_p50_ms;
  std::vector<double> gap_p99_ms;
  std::vector<double> gap_p99_beyond_step_ms; // what the server may have added: a gap cannot be shorter than a step
  std::vector<double> tokens_per_s;
};

/// Measures one server once and adds what it gave to `samples`.
void measure_round(const bench_options& o, std::uint32_t streams, server_kind kind, int round,
                   stream_samples& samples) {
  installation system{kind};
  bench_streams_options client;
  client.target = system.grpc();
  client.streams = streams;
  client.seconds = o.seconds;
  client.warm_up_s = o.quick ? 1 : 1.5;
  client.cpu = [&] { return system.cpu(); };
  const auto r = run_bench_streams(client);
  if (!r.error.empty() || r.tokens == 0)
    throw std::runtime_error(fmt::format("{} streams at {}: {}", streams, to_string(kind), r.error));
  system.end();
  const auto tokens = static_cast<double>(r.tokens);
  samples.cpu_us.push_back(r.cpu_s / tokens * 1e6);
  samples.gap_p50_ms.push_back(r.gap_p50_ms);
  samples.gap_p99_ms.push_back(r.gap_p99_ms);
  samples.gap_p99_beyond_step_ms.push_back(r.gap_p99_ms - bench_engine_step_ms);
  samples.tokens_per_s.push_back(tokens / r.seconds);
  fmt::print(
      "{} streams, round {}, {:<6}: {:7.0f} tokens/s, {:.2f} per chunk, {:6.2f} us CPU per token, gap p50 {:.1f} "
      "p99 {:.1f} ms\n",
      streams, round + 1, to_string(kind), tokens / r.seconds, tokens / static_cast<double>(r.chunks),
      samples.cpu_us.back(), r.gap_p50_ms, r.gap_p99_ms);
  std::fflush(stdout);
}

} // namespace

void measure_streams(const bench_options& o, std::uint32_t streams, std::vector<figure>& figures) {
  std::map<server_kind, stream_samples> samples;
  for (int round = 0; round < o.rounds; ++round)
    for (const auto kind : {server_kind::node, server_kind::grpcpp, server_kind::bare})
      measure_round(o, streams, kind, round, samples[kind]);
  const auto add = [&](const std::string& name, auto member, const std::string& unit, server_kind reference,
                       figure::bound on, double limit) {
    figures.push_back({fmt::format("{}_{}_streams", name, streams), median(samples[server_kind::node].*member), unit,
                       median(samples[reference].*member), on, limit});
  };
  using bound = figure::bound;
  add("cpu_per_token", &stream_samples::cpu_us, "us", server_kind::grpcpp, bound::ratio, 0.4);
  add("cpu_per_token_vs_bare", &stream_samples::cpu_us, "us", server_kind::bare, bound::ratio, 2);
  add("gap_p99", &stream_samples::gap_p99_ms, "ms", server_kind::grpcpp, bound::ratio, 0.7);
  add("gap_p99_beyond_step", &stream_samples::gap_p99_beyond_step_ms, "ms", server_kind::grpcpp, bound::ratio, 0.7);
  add("gap_p99_vs_bare", &stream_samples::gap_p99_ms, "ms", server_kind::bare, bound::none, 0);
  add("gap_p50", &stream_samples::gap_p50_ms, "ms", server_kind::grpcpp, bound::none, 0);
  add("throughput", &stream_samples::tokens_per_s, "tokens/s", server_kind::grpcpp, bound::none, 0);
}

} // namespace rankwise::app
