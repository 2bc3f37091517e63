#include "sim/summary.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace rankwise::sim {

double quantile(std::vector<double> values, double q) {
  if (values.empty())
    return std::numeric_limits<double>::quiet_NaN();
  const auto at = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

namespace {

double mean(const std::vector<double>& values) {
  return values.empty() ? std::numeric_limits<double>::quiet_NaN()
                        : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

} // namespace

run_summary summarise(const simulation_result& result, const simulation_options& options, const ttft_target& target) {
  run_summary s;
  s.requests = result.requests.size();
  std::vector<double> ttft;
  std::vector<double> slowdown;
  std::vector<double> bound;
  std::uint64_t tokens = 0;
  std::size_t met = 0;
  for (const auto& r : result.requests) {
    const auto idle = idle_ttft_s(options, r.input_tokens);
    s.refused += r.refused ? 1 : 0;
    s.failed += r.failed ? 1 : 0;
    s.completed += r.end_s >= 0 && !r.failed ? 1 : 0;
    tokens += r.generated;
    if (r.arrival_s >= 0)
      bound.push_back(idle);
    if (r.bound_s >= 0)
      s.held_max_s = std::max(s.held_max_s, r.bound_s - r.arrival_s);
    if (r.first_token_s < 0)
      continue;
    const auto waited = r.first_token_s - r.arrival_s;
    ttft.push_back(waited);
    // With a prefix cache a TTFT may be shorter than that of the whole prompt on an idle pool.
    slowdown.push_back(waited / idle);
    met += !r.failed && waited <= target.slack_s + target.slowdown * idle ? 1 : 0;
  }
  s.ttft_mean_s = mean(ttft);
  s.ttft_p50_s = quantile(ttft, 0.5);
  s.ttft_p99_s = quantile(ttft, 0.99);
  s.slowdown_mean = mean(slowdown);
  s.slowdown_p99 = quantile(slowdown, 0.99);
  s.slowdown_max = quantile(slowdown, 1);
  s.ttft_bound_p99_s = quantile(bound, 0.99);
  s.gap_p50_s = result.gaps.quantile_s(0.5);
  s.gap_p99_s = result.gaps.quantile_s(0.99);
  s.gap_mean_s = result.gaps.mean_s();
  s.goodput_share = s.requests == 0 ? 0 : static_cast<double>(met) / static_cast<double>(s.requests);
  s.tokens_per_s = result.makespan_s > 0 ? static_cast<double>(tokens) / result.makespan_s : 0;
  s.busiest_to_mean_kv = result.busiest_to_mean_kv;
  s.busiest_to_mean_work = result.busiest_to_mean_work;
  s.prefix_hit_share = result.prefix_hit_share;
  return s;
}

std::vector<class_summary> summarise_classes(const simulation_result& result) {
  struct sums {
    class_summary out;
    std::vector<double> ttft;
    std::size_t met = 0;
  };
  std::map<std::pair<std::int32_t, bool>, sums, std::greater<>> by_class;
  for (const auto& r : result.requests) {
    auto& c = by_class[{r.priority, r.deadline_s.has_value()}];
    ++c.out.requests;
    if (r.bound_s >= 0)
      c.out.held_max_s = std::max(c.out.held_max_s, r.bound_s - r.arrival_s);
    if (r.first_token_s >= 0)
      c.ttft.push_back(r.first_token_s - r.arrival_s);
    c.met += r.deadline_s && r.first_token_s >= 0 && r.first_token_s - r.arrival_s <= *r.deadline_s ? 1 : 0;
  }
  std::vector<class_summary> rows;
  for (auto& [key, c] : by_class) {
    std::tie(c.out.priority, c.out.with_deadline) = key;
    c.out.ttft_mean_s = mean(c.ttft);
    c.out.ttft_p99_s = quantile(std::move(c.ttft), 0.99);
    c.out.deadlines_met_share = static_cast<double>(c.met) / static_cast<double>(c.out.requests);
    rows.push_back(c.out);
  }
  return rows;
}

double saturation_speed(const workload& load, const simulation_options& options) {
  if (load.span_s() <= 0)
    return 1;
  auto at_once = load;
  for (auto& r : at_once.requests) {
    r.arrival_s = 0;
    r.after.reset();
  }
  auto o = options;
  o.front_ends = 1;
  o.happenings.clear();
  o.recorder = nullptr;
  o.load_path = {};
  o.kv_sample_s = 0;
  o.pool.policy = "total_requests";
  o.pool.waiting_requests_max = 0;
  const auto result = simulate(at_once, o);
  std::vector<double> ends;
  for (const auto& r : result.requests)
    if (r.end_s >= 0)
      ends.push_back(r.end_s);
  constexpr double part = 0.9;
  const auto needed = quantile(ends, part);
  return part * load.span_s() / needed;
}

} // namespace rankwise::sim
