#include "sim/built_in_workloads.hpp"
#include "sim/load_paths.hpp"
#include "sim/suite.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <fmt/format.h>
#include <map>

namespace rankwise::sim {

namespace {

struct metric {
  const char* name;
  double (*of)(const run_summary&);
};

constexpr std::array compared{metric{"ttft_mean_s", [](const run_summary& s) { return s.ttft_mean_s; }},
                              metric{"ttft_p99_s", [](const run_summary& s) { return s.ttft_p99_s; }},
                              metric{"slowdown_p99", [](const run_summary& s) { return s.slowdown_p99; }},
                              metric{"gap_p99_s", [](const run_summary& s) { return s.gap_p99_s; }},
                              metric{"gap_p50_s", [](const run_summary& s) { return s.gap_p50_s; }}};

/// One rule in one scenario, and what came of it.
struct job {
  scenario where;
  std::string policy;
  policy_result result;
};

/// Ours over the best peer's, by each figure.
using ratios = std::array<double, compared.size()>;

std::string metric_name(const char* figure) {
  return fmt::format("{}_over_best_peer's_geometric_mean", figure);
}

class suite {
 public:
  suite(const suite_settings& options, std::vector<suite_trace> traces,
        const std::function<void(std::size_t, std::size_t)>& progress)
      : options_(options), traces_(std::move(traces)), progress_(progress) {}

  std::vector<suite_figure> run() {
    compare_in_main_scenarios();
    if (!options_.short_form) {
      compare_in_large_pools();
      compare_on_built_in_workloads();
      stale_and_shared();
      prefixes();
      balance();
      faults();
    }
    return std::move(figures_);
  }

 private:
  [[nodiscard]] const workload& load_of(const std::string& name) const {
    const auto named = [&](const auto& t) { return t.name == name; };
    const auto found = std::find_if(traces_.begin(), traces_.end(), named);
    return found != traces_.end() ? found->load : std::find_if(others_.begin(), others_.end(), named)->load;
  }

  void run_jobs(std::vector<job>& jobs) {
    std::atomic<std::size_t> done{0};
    in_parallel(jobs.size(), options_.threads, [&](std::size_t i) {
      jobs[i].result = run_scenario(jobs[i].where, load_of(jobs[i].where.trace), jobs[i].policy);
      if (progress_)
        progress_(++done, jobs.size());
    });
  }

  void add(std::string scenario, std::string policy, std::string name, double value, figure_sample sample,
           std::string target = {}, bool holds = true, std::string peer = {}, double peer_value = 0) {
    figures_.push_back({std::move(scenario), std::move(policy), std::move(name), value, sample, std::move(peer),
                        peer_value, std::move(target), holds});
  }

  static figure_sample requests_of(const run_summary& s) { return {s.requests, "requests"}; }

  static figure_sample scenarios_of(std::size_t n) { return {n, "scenarios"}; }

  /// The share of `all` scenarios that have a property, `part` of them, beside the share that must have it.
  void add_share(std::string scenarios, std::string name, std::size_t part, std::size_t all, double wanted) {
    const auto of_all = [&](std::size_t n) {
      return all == 0 ? 1.0 : static_cast<double>(n) / static_cast<double>(all);
    };
    const double value = of_all(part);
    auto target = wanted == 1 ? std::string{"= 1"} : fmt::format(">= {:g}", wanted);
    double least = wanted;
    if (options_.short_form && wanted < 1) {
      least = of_all(fewest_at_99_percent(all, wanted));
      target = fmt::format(">= {:.3g} ({:g} at 99 %)", least, wanted);
    }
    add(std::move(scenarios), "headroom", std::move(name), value, scenarios_of(all), std::move(target), value >= least);
  }

  /// A row for each figure: ours beside the best of the peers [first, last), and the oracle's.
  ratios add_comparison(const scenario& s, const job* first, const job* last, const run_summary& ours,
                        const run_summary& oracle) {
    ratios result{};
    for (std::size_t m = 0; m < compared.size(); ++m) {
      const auto* best = std::min_element(first, last, [&](const job& a, const job& b) {
        return compared[m].of(a.result.summary) < compared[m].of(b.result.summary);
      });
      const double theirs = compared[m].of(best->result.summary);
      const double value = compared[m].of(ours);
      result[m] = value / theirs;
      add(s.name, "headroom", compared[m].name, value, requests_of(ours), "<= 1.01 x best peer", result[m] <= 1.01,
          best->policy, theirs);
      add(s.name, "oracle", compared[m].name, compared[m].of(oracle), requests_of(oracle));
    }
    return result;
  }

  void compare_in_main_scenarios() {
    auto scenarios = main_scenarios(traces_, options_.utilisations, options_.tuning);
    for (auto& s : scenarios)
      s.options.pool.waiting_order.patience_max = options_.waiting_patience_max;
    std::vector<job> jobs;
    for (const auto& s : scenarios) {
      for (const auto peer : peer_policies)
        jobs.push_back({s, std::string{peer}, {}});
      jobs.push_back({s, "headroom", {}});
      jobs.push_back({s, "headroom_fcfs", {}});
      jobs.push_back({s, "oracle", {}});
    }
    run_jobs(jobs);
    const std::size_t each = std::size(peer_policies) + 3;
    std::array<std::size_t, compared.size()> as_good{};
    std::array<std::size_t, 3> much_better{};
    std::map<double, std::array<double, compared.size()>> logs; // by utilisation: sums of the ratios' logarithms
    std::size_t prefilling = 0;
    std::size_t lockstep_decodes = 0;
    std::size_t quicker_decodes = 0;
    for (std::size_t i = 0; i < scenarios.size(); ++i) {
      const auto* first = &jobs[i * each];
      const auto* last = first + std::size(peer_policies);
      const auto& ours = last[0].result.summary;
      const auto& fcfs = last[1].result.summary;
      const auto& s = scenarios[i];
      const auto ratio = add_comparison(s, first, last, ours, last[2].result.summary);
      for (std::size_t m = 0; m < compared.size(); ++m) {
        logs[s.utilisation][m] += std::log(ratio[m]);
        as_good[m] += ratio[m] <= 1.01 ? 1 : 0;
      }
      add(s.name, "headroom", "ttft_idle_p99_s", ours.ttft_bound_p99_s, requests_of(ours));
      if (s.utilisation == 0.9 && s.options.shape != pool_shape::decode) {
        ++prefilling;
        much_better[0] += ratio[0] <= 0.75 ? 1 : 0;
        much_better[1] += ratio[1] <= 0.9 ? 1 : 0;
        much_better[2] += ratio[2] <= 0.7 ? 1 : 0;
      }
      if (s.utilisation == 0.9 && s.options.shape == pool_shape::decode && s.options.lockstep) {
        ++lockstep_decodes;
        quicker_decodes += ratio[4] <= 0.96 ? 1 : 0;
      }
      if (s.utilisation > 1 && s.options.shape != pool_shape::decode) {
        add(s.name, "headroom_fcfs", "ttft_mean_over_headroom's", fcfs.ttft_mean_s / ours.ttft_mean_s,
            requests_of(fcfs), ">= 3", fcfs.ttft_mean_s / ours.ttft_mean_s >= 3);
        add(s.name, "headroom", "goodput_over_fcfs", ours.goodput_share / std::max(fcfs.goodput_share, 1e-9),
            requests_of(ours), ">= 1.5", ours.goodput_share >= 1.5 * fcfs.goodput_share);
      }
      if (s.utilisation > 1) {
        const double bound = starvation_bound_s(s.options.pool);
        add(s.name, "headroom", "wait_max_s", ours.held_max_s, requests_of(ours),
            fmt::format("<= {:g} and a tick", bound), ours.held_max_s <= bound + 0.25);
      }
    }
    for (const auto& [utilisation, sums] : logs) {
      const auto count = scenarios.size() / logs.size();
      for (std::size_t m = 0; m < compared.size(); ++m)
        add(fmt::format("all, {:.1f}", utilisation), "headroom", metric_name(compared[m].name),
            std::exp(sums[m] / static_cast<double>(count)), scenarios_of(count));
    }
    for (std::size_t m = 0; m < compared.size(); ++m)
      add_share("all", fmt::format("share_as_good_by_{}", compared[m].name), as_good[m], scenarios.size(), 1);
    const std::array names{"share_ttft_mean_25%_better", "share_ttft_p99_10%_better", "share_slowdown_p99_30%_better"};
    for (std::size_t k = 0; k < names.size(); ++k)
      add_share("unified and pd, 0.9", names[k], much_better[k], prefilling, 0.5);
    add_share("decode lockstep, 0.9", "share_gap_p50_4%_better", quicker_decodes, lockstep_decodes, 1);
  }

  /// Independent, at 0.9.
  scenario variant(const std::string& trace, pool_shape shape, std::string_view what, std::uint16_t ranks = 8) const {
    scenario s;
    s.trace = trace;
    s.options = suite_options(shape, false, ranks);
    s.options.pool.tuning = options_.tuning;
    s.utilisation = 0.9;
    s.speed = 0.9 * saturation_speed(load_of(trace), s.options);
    s.name = fmt::format("{} {} {}", trace, to_string(shape), what);
    return s;
  }

  /// Headroom beside the best peer in each, and the geometric mean of all as the figures of `group`.
  void compare(const std::vector<scenario>& scenarios, const std::string& group) {
    std::vector<job> jobs;
    for (const auto& s : scenarios) {
      for (const auto peer : peer_policies)
        jobs.push_back({s, std::string{peer}, {}});
      jobs.push_back({s, "headroom", {}});
      jobs.push_back({s, "oracle", {}});
    }
    run_jobs(jobs);
    ratios logs{};
    for (std::size_t i = 0; i < scenarios.size(); ++i) {
      const auto* first = &jobs[i * (std::size(peer_policies) + 2)];
      const auto* last = first + std::size(peer_policies);
      const auto ratio = add_comparison(scenarios[i], first, last, last[0].result.summary, last[1].result.summary);
      for (std::size_t m = 0; m < compared.size(); ++m)
        logs[m] += std::log(ratio[m]) / static_cast<double>(scenarios.size());
    }
    for (std::size_t m = 0; m < compared.size(); ++m)
      add(group, "headroom", metric_name(compared[m].name), std::exp(logs[m]), scenarios_of(scenarios.size()));
  }

  /// 64 ranks under the whole traces: as many requests as there are, or eight times those of the main scenarios.
  void compare_in_large_pools() {
    constexpr std::uint16_t ranks = 64;
    std::vector<std::string> left_out; // told for the main scenarios already
    for (auto& t : suite_traces(options_.traces, 8 * options_.requests_max, options_.seed, left_out))
      others_.push_back({t.name + " whole", std::move(t.load)});
    if (others_.empty()) {
      mixed_workload_options mixed;
      mixed.requests = 8 * options_.requests_max;
      mixed.seed = options_.seed;
      others_.push_back({"mixed whole", mixed_workload(mixed)});
    }
    std::vector<scenario> scenarios;
    for (const auto& t : others_)
      scenarios.push_back(variant(t.name, pool_shape::unified, fmt::format("independent 0.9, {} ranks", ranks), ranks));
    compare(scenarios, "64 ranks, 0.9");
  }

  void compare_on_built_in_workloads() {
    constexpr std::uint32_t clients = 200; // of a closed loop: busy ranks, and no queue that grows
    std::vector<scenario> scenarios;
    built_in_choice choice;
    choice.requests = options_.requests_max;
    choice.seed = options_.seed;
    choice.clients = clients;
    for (const std::string name : {"giants", "shared-prompts", "agents", "closed-loop"}) {
      const auto trace = "built-in " + name;
      others_.push_back({trace, *built_in_workload(name, choice)});
      const bool cached = name == "shared-prompts" || name == "agents";
      const bool closed = name == "closed-loop";
      auto s = variant(trace, pool_shape::unified,
                       closed   ? fmt::format("independent, {} clients", clients)
                       : cached ? "independent 0.9 with prefix cache"
                                : "independent 0.9");
      if (cached)
        s.options.engine.prefix_block_tokens = load_of(trace).block_tokens;
      if (closed)
        s.speed = 1;
      scenarios.push_back(std::move(s));
    }
    compare(scenarios, "built-in workloads");
  }

  /// What late, lost and shared knowledge costs.
  void stale_and_shared() {
    struct change {
      const char* name;
      double most; ///< times the fresh run's mean TTFT
      void (*apply)(simulation_options&);
    };
    constexpr std::array changes{
        change{"reports 100 ms late", 1.03, [](auto& o) { o.load_path.delay = std::chrono::milliseconds{100}; }},
        change{"reports 1 s late", 1.10, [](auto& o) { o.load_path.delay = std::chrono::seconds{1}; }},
        change{"20 % of reports lost", 1.03, [](auto& o) { o.load_path.loss = 0.2; }},
        change{"4 front ends", 1.10, [](auto& o) { o.front_ends = 4; }}};
    std::vector<job> jobs;
    for (const auto& t : traces_) {
      const auto fresh = variant(t.name, pool_shape::unified, "fresh");
      jobs.push_back({fresh, "headroom", {}});
      for (const auto& c : changes) {
        auto s = fresh;
        s.name = fmt::format("{} unified {}", t.name, c.name);
        c.apply(s.options);
        jobs.push_back({s, "headroom", {}});
      }
    }
    run_jobs(jobs);
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      const auto& fresh = jobs[t * (changes.size() + 1)].result.summary;
      for (std::size_t c = 0; c < changes.size(); ++c) {
        const auto& j = jobs[t * (changes.size() + 1) + 1 + c];
        const double ratio = j.result.summary.ttft_mean_s / fresh.ttft_mean_s;
        add(j.where.name, "headroom", "ttft_mean_over_fresh", ratio, requests_of(j.result.summary),
            fmt::format("<= {}", changes[c].most), ratio <= changes[c].most);
      }
    }
  }

  void prefixes() {
    std::vector<job> jobs;
    for (const auto& t : traces_) {
      if (t.name.find("mooncake") == std::string::npos)
        continue;
      auto s = variant(t.name, pool_shape::unified, "with prefix cache");
      s.options.engine.prefix_block_tokens = t.load.block_tokens;
      for (const char* policy : {"headroom", "prefix_hash"})
        jobs.push_back({s, policy, {}});
      auto without = s;
      without.name += ", affinity off";
      without.options.pool.tuning.headroom_prefix = false;
      jobs.push_back({without, "headroom", {}});
    }
    run_jobs(jobs);
    for (std::size_t i = 0; i + 2 < jobs.size(); i += 3) {
      const auto& ours = jobs[i].result.summary;
      const auto& hash = jobs[i + 1].result.summary;
      const auto& off = jobs[i + 2].result.summary;
      add(jobs[i].where.name, "headroom", "prefix_hit_share", ours.prefix_hit_share, requests_of(ours),
          ">= 0.95 x prefix_hash", ours.prefix_hit_share >= 0.95 * hash.prefix_hit_share, "prefix_hash",
          hash.prefix_hit_share);
      add(jobs[i].where.name, "headroom", "busiest_to_mean_work", ours.busiest_to_mean_work, requests_of(ours),
          "<= 1.05 x affinity off", ours.busiest_to_mean_work <= 1.05 * off.busiest_to_mean_work, "affinity off",
          off.busiest_to_mean_work);
    }
  }

  void balance() {
    std::vector<job> jobs;
    for (const auto& t : traces_) {
      const auto s = variant(t.name, pool_shape::decode, "least KV");
      jobs.push_back({s, "least_kv", {}});
      jobs.push_back({s, "oracle_least_kv", {}});
    }
    run_jobs(jobs);
    for (std::size_t i = 0; i + 1 < jobs.size(); i += 2) {
      const auto ours = jobs[i].result.summary.busiest_to_mean_kv;
      const auto best = jobs[i + 1].result.summary.busiest_to_mean_kv;
      add(jobs[i].where.name, "least_kv", "busiest_to_mean_kv", ours, requests_of(jobs[i].result.summary),
          "<= 1.02 x oracle", ours <= 1.02 * best, "oracle_least_kv", best);
    }
  }

  /// Requests placed from `begin_s` on.
  static figure_sample placed_from(const simulation_result& r, double begin_s) {
    const auto n =
        std::count_if(r.requests.begin(), r.requests.end(), [&](const auto& q) { return q.bound_s >= begin_s; });
    return {static_cast<std::size_t>(n), "requests"};
  }

  /// Of the prompt tokens placed from `begin_s` on, the part that a rank got, in ranks' fair shares.
  static double fair_share(const simulation_result& r, double begin_s, std::size_t ranks, std::uint16_t rank = 0) {
    std::uint64_t all = 0;
    std::uint64_t there = 0;
    for (const auto& q : r.requests) {
      if (q.bound_s < begin_s)
        continue;
      all += q.input_tokens;
      there += q.rank == rank ? q.input_tokens : 0;
    }
    return all == 0 ? 0 : static_cast<double>(there * ranks) / static_cast<double>(all);
  }

  void faults() {
    for (const auto& t : traces_) {
      auto s = variant(t.name, pool_shape::unified, "one rank at half speed");
      workload_limits limits;
      limits.speed = s.speed;
      const auto load = limited(load_of(t.name), limits);
      const double at = load.span_s() * 0.3;
      auto o = s.options;
      apply_policy("headroom", o);
      o.happenings.push_back({at, rank_happening::kind::slows, 0, 2});
      const auto with_slow = simulate(load, o);
      const auto slow = fair_share(with_slow, at + 2, o.ranks);
      add(s.name, "headroom", "prompt_tokens_in_fair_shares_from_2_s_on", slow, placed_from(with_slow, at + 2),
          "<= 0.8", slow <= 0.8);
      o = s.options;
      apply_policy("headroom", o);
      o.load_path.silent_rank = 0;
      const auto with_silence = simulate(load, o);
      const auto silent = fair_share(with_silence, 0, o.ranks);
      const auto name = fmt::format("{} unified one silent rank", t.name);
      const auto placed = placed_from(with_silence, 0);
      add(name, "headroom", "prompt_tokens_in_fair_shares", silent, placed, "0.9 to 1.1",
          silent >= 0.9 && silent <= 1.1);
      // Where headroom gathers streams on some ranks and long prompts on others, shares differ without any silence too.
      double least = silent;
      double most = 0;
      for (std::uint16_t rank = 1; rank < o.ranks; ++rank) {
        const auto share = fair_share(with_silence, 0, o.ranks, rank);
        least = rank == 1 ? share : std::min(least, share);
        most = std::max(most, share);
      }
      add(name, "headroom", "prompt_tokens_beside_the_others", silent, placed,
          fmt::format("{:.3g} to {:.3g}, the others'", least, most), silent >= 0.99 * least && silent <= 1.01 * most);
    }
  }

  suite_settings options_;
  std::vector<suite_trace> traces_; ///< of the main scenarios
  std::vector<suite_trace> others_;
  const std::function<void(std::size_t, std::size_t)>& progress_;
  std::vector<suite_figure> figures_;
};

} // namespace

double starvation_bound_s(const core::pool_options& pool) {
  return core::to_seconds(std::min(pool.waiting_order.patience_max, pool.waiting_time_max));
}

std::size_t fewest_at_99_percent(std::size_t n, double claimed) {
  if (claimed >= 1)
    return n;
  double log_exactly = static_cast<double>(n) * std::log1p(-claimed); // of the probability that exactly k have it
  double at_most = std::exp(log_exactly);
  std::size_t k = 0;
  while (at_most <= 0.01 && k < n) {
    ++k;
    log_exactly += std::log(static_cast<double>(n - k + 1) / static_cast<double>(k) * claimed / (1 - claimed));
    at_most += std::exp(log_exactly);
  }
  return k;
}

suite_result run_suite(const suite_settings& options, const std::function<void(std::size_t, std::size_t)>& progress) {
  suite_result result;
  std::vector<suite_trace> traces;
  auto o = options;
  if (!options.short_form)
    traces = suite_traces(options.traces, options.requests_max, options.seed, result.missing);
  else
    o.utilisations = {0.9};
  if (traces.empty()) {
    mixed_workload_options mixed;
    mixed.requests = options.short_form ? 3000 : options.requests_max;
    mixed.seed = options.seed;
    traces.push_back({"mixed", mixed_workload(mixed)});
    mixed.input_tokens_max = 131'072;
    mixed.seed = options.seed + 1;
    traces.push_back({"giants", giants_workload({mixed})});
  }
  result.figures = suite{o, std::move(traces), progress}.run();
  return result;
}

} // namespace rankwise::sim
