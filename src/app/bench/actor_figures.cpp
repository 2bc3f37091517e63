#include "app/bench/bench_actors.hpp"
#include "app/bench/bench_groups.hpp"
#include "app/bench/bench_installation.hpp"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace rankwise::app {

namespace {

using bound = figure::bound;

constexpr double paced_requests_per_s = 5000;

/// What the rounds of one way through the node gave.
struct path_samples {
  std::vector<double> rate, cpu_us, dispatch_p50_us, dispatch_p99_us, answer_p50_us, answer_p99_us;
};
using samples_by_path = std::map<path_kind, path_samples>;

void note(actor_handlers& total, const actor_handlers& more) {
  total.handled += more.handled;
  total.slow += more.slow;
  total.longest_ms = std::max(total.longest_ms, more.longest_ms);
}

/// Measures one way at full speed and at a fixed rate, and adds what it gave to `s`.
void measure_path(const bench_options& o, std::uint32_t prompt_tokens, path_kind kind, const char* name, int round,
                  path_samples& s, actor_handlers& handlers) {
  path_options p;
  p.kind = kind;
  p.ranks = bench_rank_count;
  p.prompt_tokens = prompt_tokens;
  p.requests = o.quick ? 4000 : prompt_tokens > 1000 ? 20'000 : 60'000;
  const auto full = run_path(p);
  p.requests_per_s = paced_requests_per_s;
  p.requests = static_cast<std::uint32_t>(paced_requests_per_s * o.seconds);
  const auto paced = run_path(p);
  s.rate.push_back(full.requests_per_s);
  s.cpu_us.push_back(full.cpu_us);
  s.dispatch_p50_us.push_back(paced.dispatch_p50_us);
  s.dispatch_p99_us.push_back(paced.dispatch_p99_us);
  s.answer_p50_us.push_back(paced.answer_p50_us);
  s.answer_p99_us.push_back(paced.answer_p99_us);
  note(handlers, full.handlers);
  note(handlers, paced.handlers);
  fmt::print("{} B prompts, round {}, {:<13}: {:6.0f} requests/s, {:5.1f} us CPU each; at {:.0f}/s dispatched p50 "
             "{:.0f} p99 {:.0f} us, answered p50 {:.0f} p99 {:.0f} us\n",
             prompt_tokens * 4, round + 1, name, full.requests_per_s, full.cpu_us, paced_requests_per_s,
             paced.dispatch_p50_us, paced.dispatch_p99_us, paced.answer_p50_us, paced.answer_p99_us);
  std::fflush(stdout);
}

void add_path_figures(std::uint32_t prompt_tokens, samples_by_path& of, std::vector<figure>& figures) {
  const auto add = [&](const std::string& name, auto member, const std::string& unit, bound on, double limit,
                       path_kind reference = path_kind::calls) {
    figures.push_back({fmt::format("actors_{}_{}B", name, prompt_tokens * 4), median(of[path_kind::actors].*member),
                       unit, median(of[reference].*member), on, limit});
  };
  add("rate", &path_samples::rate, "req/s", bound::ratio_min, 0.6);
  add("cpu_per_request", &path_samples::cpu_us, "us", bound::none, 0);
  add("answer_p50_at_5000", &path_samples::answer_p50_us, "us", bound::none, 0);
  add("answer_p99_at_5000", &path_samples::answer_p99_us, "us", bound::ratio, 2);
  add("dispatch_p50_at_5000", &path_samples::dispatch_p50_us, "us", bound::none, 0);
  add("dispatch_p99_at_5000", &path_samples::dispatch_p99_us, "us", bound::ratio, 2);
  add("dispatch_p99_vs_one_hand_over", &path_samples::dispatch_p99_us, "us", bound::none, 0, path_kind::one_hand_over);
}

void measure_paths(const bench_options& o, std::uint32_t prompt_tokens, actor_handlers& handlers,
                   std::vector<figure>& figures) {
  samples_by_path of;
  for (int round = 0; round < o.rounds; ++round)
    for (const auto& [kind, name] : {std::pair{path_kind::actors, "actors"},
                                     {path_kind::one_hand_over, "one hand-over"},
                                     {path_kind::calls, "no actors"}})
      measure_path(o, prompt_tokens, kind, name, round, of[kind], handlers);
  add_path_figures(prompt_tokens, of, figures);
}

void add_handler_figures(const actor_handlers& handlers, std::vector<figure>& figures) {
  figures.push_back({"handler_longest", handlers.longest_ms, "ms", std::nullopt, bound::value, 25});
  figures.push_back(
      {"handlers_over_500us",
       100 * static_cast<double>(handlers.slow) / static_cast<double>(std::max<std::uint64_t>(handlers.handled, 1)),
       "%", std::nullopt, bound::value, 0.1});
}

} // namespace

void measure_actors(const bench_options& o, std::vector<figure>& figures) {
  actor_handlers handlers;
  for (const std::uint32_t prompt_tokens : {128U, 2048U})
    measure_paths(o, prompt_tokens, handlers, figures);
  const auto held = run_in_flight(bench_rank_count, o.quick ? 10'000 : 100'000, 128);
  note(handlers, held.handlers);
  figures.push_back({fmt::format("in_flight_{}_memory", held.requests), held.bytes_per_request, "B/request",
                     std::nullopt, bound::none, 0});
  add_handler_figures(handlers, figures);
  for (const int count : {8, 64, 512, 1024})
    figures.push_back({fmt::format("placement_{}_ranks", count),
                       placement_ns(static_cast<std::uint16_t>(count), o.quick ? 2000 : 50'000), "ns", std::nullopt,
                       bound::none, 0});
}

} // namespace rankwise::app
