#include "app/sim/sim_table.hpp"

#include "sim/summary.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <unistd.h>

namespace rankwise::app {

namespace {

struct column {
  const char* title;
  double sim::run_summary::*value;
  double factor;
  int digits;
  bool lowest; // the best is the lowest; false: the highest
};

constexpr column columns[] = {{"TTFT mean s", &sim::run_summary::ttft_mean_s, 1, 3, true},
                              {"p50 s", &sim::run_summary::ttft_p50_s, 1, 3, true},
                              {"p99 s", &sim::run_summary::ttft_p99_s, 1, 2, true},
                              {"slowdown p99", &sim::run_summary::slowdown_p99, 1, 1, true},
                              {"gap p50 ms", &sim::run_summary::gap_p50_s, 1e3, 1, true},
                              {"p99 ms", &sim::run_summary::gap_p99_s, 1e3, 1, true},
                              {"goodput %", &sim::run_summary::goodput_share, 100, 1, false},
                              {"KV max/mean", &sim::run_summary::busiest_to_mean_kv, 1, 3, true},
                              {"hits %", &sim::run_summary::prefix_hit_share, 100, 1, false}};

} // namespace

void print_table(const std::vector<policy_run>& runs) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  fmt::print("{:<24}", "POLICY");
  for (const auto& c : columns)
    fmt::print(" {:>12}", c.title);
  fmt::print(" {:>7} {:>6} {:>8}\n", "wall s", "LOST", "HASH");
  for (const auto& r : runs) {
    fmt::print("{:<24}", r.policy);
    for (const auto& c : columns) {
      double best = r.summary.*c.value;
      for (const auto& other : runs)
        if (other.policy.find("oracle") == std::string::npos)
          best = c.lowest ? std::min(best, other.summary.*c.value) : std::max(best, other.summary.*c.value);
      const auto text = fmt::format("{:>12.{}f}", r.summary.*c.value * c.factor, c.digits);
      const bool bold = terminal && r.summary.*c.value == best && r.policy.find("oracle") == std::string::npos;
      fmt::print(" {}{}{}", bold ? "\x1b[1m" : "", text, bold ? "\x1b[0m" : "");
    }
    fmt::print(" {:>7.2f} {:>6} {:>8.8s}\n", r.took_s, r.summary.requests - r.summary.completed,
               fmt::format("{:016x}", r.result.event_hash));
  }
}

void print_classes(const std::vector<policy_run>& runs) {
  if (sim::summarise_classes(runs.front().result).size() < 2)
    return;
  fmt::print("\n{:<24} {:>8} {:>8} {:>9} {:>12} {:>12} {:>12} {:>12}\n", "POLICY", "PRIORITY", "DEADLINE", "REQUESTS",
             "TTFT mean s", "p99 s", "wait max s", "in time %");
  for (const auto& r : runs)
    for (const auto& c : sim::summarise_classes(r.result))
      fmt::print("{:<24} {:>8} {:>8} {:>9} {:>12.3f} {:>12.2f} {:>12.2f} {:>12}\n", r.policy, c.priority,
                 c.with_deadline ? "yes" : "no", c.requests, c.ttft_mean_s, c.ttft_p99_s, c.held_max_s,
                 c.with_deadline ? fmt::format("{:.1f}", 100 * c.deadlines_met_share) : "-");
}

} // namespace rankwise::app
