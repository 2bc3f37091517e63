#include "app/bench/bench_client.hpp"
#include "app/bench/bench_groups.hpp"
#include "app/bench/bench_installation.hpp"
#include "io/http/admin_server.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace rankwise::app {

namespace {

constexpr double requests_per_s = 2000;
constexpr std::uint32_t tokens_per_request = 25; // 50,000 tokens/s
constexpr double warm_up_s = 1;

/// Upper bound -> observations up to it, of rankwise_dispatch_seconds.
using buckets = std::map<double, double>;

buckets read_buckets(const std::string& admin) {
  const auto answer = io::http_get(admin, "/metrics", 2);
  buckets result;
  std::istringstream lines{answer.body};
  const std::string prefix = "rankwise_dispatch_seconds_bucket{le=\"";
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(prefix))
      continue;
    const auto bound = line.substr(prefix.size(), line.find('"', prefix.size()) - prefix.size());
    result[bound == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(bound)] =
        std::stod(line.substr(line.rfind(' ') + 1));
  }
  if (result.empty())
    throw std::runtime_error("/metrics has no rankwise_dispatch_seconds: " + answer.body.substr(0, 200));
  return result;
}

/// In microseconds, interpolated inside its bucket.
double quantile_us(const buckets& before, const buckets& after, double q) {
  const auto count_at = [&](double bound) { return after.at(bound) - before.at(bound); };
  const double wanted = q * count_at(after.rbegin()->first);
  double lower = 0;
  double below = 0;
  for (const auto& [bound, ignored] : after) {
    const double here = count_at(bound);
    if (here >= wanted)
      return std::isinf(bound)
                 ? 1e6 * lower
                 : 1e6 * (lower + (bound - lower) * (here > below ? (wanted - below) / (here - below) : 1));
    lower = bound;
    below = here;
  }
  return 1e6 * lower;
}

/// Quantiles of the time from accepting a request until ZeroMQ has it.
struct dispatch_times {
  double p50_us = 0;
  double p99_us = 0;
};
struct dispatch_samples {
  std::vector<double> p50_us;
  std::vector<double> p99_us;
};

bench_arrivals_result send_requests(const installation& system, int round, std::uint32_t count) {
  bench_arrivals_options client;
  client.target = system.grpc();
  client.rid_prefix = "bench-" + std::to_string(round);
  client.requests = count;
  client.requests_per_s = requests_per_s;
  client.tokens = tokens_per_request;
  return run_bench_arrivals(client);
}

/// Does `work`, and meanwhile reads the node's histogram when the warm-up is over: empty when it cannot be read.
template <class Work>
buckets read_after_warm_up(const std::string& admin, Work work) {
  buckets before;
  std::thread reader{[&] {
    std::this_thread::sleep_for(std::chrono::duration<double>{warm_up_s});
    try {
      before = read_buckets(admin);
    } catch (const std::exception&) {
      before.clear();
    }
  }};
  work();
  reader.join();
  return before;
}

/// A node's times are in its metrics.
dispatch_times times_of_node(installation& system, const buckets& before) {
  if (before.empty())
    throw std::runtime_error("the node's /metrics could not be read");
  const auto after = read_buckets(system.admin());
  const dispatch_times times{quantile_us(before, after, 0.5), quantile_us(before, after, 0.99)};
  system.end();
  return times;
}

/// A reference server tells its times when it ends.
dispatch_times times_of_reference(installation& system) {
  const auto times = system.end();
  if (!times)
    throw std::runtime_error("the reference server gave no dispatch times");
  return {times->first, times->second};
}

void measure_round(const bench_options& o, server_kind kind, int round, dispatch_samples& samples) {
  const auto count = static_cast<std::uint32_t>(requests_per_s * (o.seconds + warm_up_s));
  installation system{kind};
  bench_arrivals_result result;
  const auto send = [&] { result = send_requests(system, round, count); };
  buckets before;
  if (kind == server_kind::node)
    before = read_after_warm_up(system.admin(), send);
  else
    send();
  if (!result.error.empty() || result.completed != count)
    throw std::runtime_error(fmt::format("dispatch at {}: {} of {} requests completed {}", to_string(kind),
                                         result.completed, count, result.error));
  const auto times = kind == server_kind::node ? times_of_node(system, before) : times_of_reference(system);
  samples.p50_us.push_back(times.p50_us);
  samples.p99_us.push_back(times.p99_us);
  fmt::print("{:.0f} requests/s, round {}, {:<6}: dispatched p50 {:.0f} p99 {:.0f} us; requests left {:.2f} ms "
             "late (p99)\n",
             requests_per_s, round + 1, to_string(kind), times.p50_us, times.p99_us, result.late_p99_ms);
  std::fflush(stdout);
}

} // namespace

void measure_dispatch(const bench_options& o, std::vector<figure>& figures) {
  std::map<server_kind, dispatch_samples> samples;
  for (int round = 0; round < o.rounds; ++round)
    for (const auto kind : {server_kind::node, server_kind::grpcpp})
      measure_round(o, kind, round, samples[kind]);
  const auto& node = samples[server_kind::node];
  const auto& reference = samples[server_kind::grpcpp];
  figures.push_back({"dispatch_p50", median(node.p50_us), "us", median(reference.p50_us), figure::bound::value, 100});
  figures.push_back({"dispatch_p99", median(node.p99_us), "us", median(reference.p99_us), figure::bound::value, 1000});
}

} // namespace rankwise::app
