#pragma once

#include "sim/pool_simulation.hpp"
#include "sim/summary.hpp"

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

/// The comparison of docs/placement.md: traces x pools x couplings x utilisations, every peer's rule beside ours; pools
/// of 64 ranks, built-in workloads, faults.
namespace rankwise::sim {

struct suite_trace {
  std::string name;
  workload load; ///< at its own speed
};

/// The five public traces under `folder`; those that are missing are left out and named in `missing`.
[[nodiscard]] std::vector<suite_trace> suite_traces(const std::filesystem::path& folder, std::size_t requests_max,
                                                    std::uint64_t seed, std::vector<std::string>& missing);

struct scenario {
  std::string name; ///< "mooncake-conversation unified lockstep 0.9"
  std::string trace;
  simulation_options options;
  double utilisation = 0.9;
  double speed = 1; ///< of the trace, found for that utilisation
};

/// Those of a rule in one scenario.
struct policy_result {
  std::string policy;
  run_summary summary;
  std::uint64_t event_hash = 0;
};

/// How much a figure was measured on: 3000 requests, 12 scenarios.
struct figure_sample {
  std::size_t n = 0;
  std::string_view unit; ///< "requests" or "scenarios"
};

/// A line of the suite's answer.
struct suite_figure {
  std::string scenario;
  std::string policy;
  std::string metric; ///< with its unit, e.g. "ttft_p99_s"
  double value = 0;
  figure_sample sample;
  std::string best_peer; ///< the policy that is best by this metric; "" where nothing is compared
  double best_peer_value = 0;
  std::string target; ///< "<= 1.01 x best peer"; "" = none
  bool holds = true;  ///< true without a target
};

struct suite_settings {
  std::filesystem::path traces;    ///< folder; without it the built-in workloads are played
  std::size_t requests_max = 6000; ///< of each trace and built-in workload; 8 times as many for 64 ranks
  std::vector<double> utilisations{0.7, 0.9, 1.1};
  unsigned threads = 2;
  std::uint64_t seed = 1;
  core::duration waiting_patience_max = core::waiting_order_options{}.patience_max; ///< of the main scenarios
  core::policy_options tuning; ///< of headroom, so that each of its parts can be measured alone
  /// Built-in workloads only, at 0.9. Where the long form asks for a share of all scenarios, the short one, which has
  /// few, asks for what so few can show: fewest_at_99_percent.
  bool short_form = false;
};

struct suite_result {
  std::vector<suite_figure> figures;
  std::vector<std::string> missing; ///< traces that were not there
};

/// Runs all of it. `progress(done, all)` is called now and then, from any thread.
[[nodiscard]] suite_result run_suite(const suite_settings& options,
                                     const std::function<void(std::size_t, std::size_t)>& progress = {});

/// Seconds that no request may wait in a controller: by then its patience or its time is over, whichever ends first.
[[nodiscard]] double starvation_bound_s(const core::pool_options& pool);

/// The fewest of `n` that must have a property when it is claimed of the share `claimed` of all, at a one-sided
/// confidence of 99 %: were the claim just true, fewer would have it in at most one of 100 such samples (binomial
/// distribution). 0 when `n` is too small to refute the claim; all `n` for a claim of 1, which one exception refutes.
/// It takes the `n` as drawn independently; scenarios that share a workload are more alike, so that chance moves their
/// share even further.
[[nodiscard]] std::size_t fewest_at_99_percent(std::size_t n, double claimed);

inline constexpr std::string_view peer_policies[] = {
    "round_robin", "total_requests", "total_tokens",     "vllm_counts",  "vllm",
    "dynamo",      "smg_least_load", "smg_power_of_two", "smg_servicer", "llm_d"};

/// The engines of a suite: H100 figures, KV and chunk of `engine_rank_options`, no prefix cache unless the scenario
/// asks for one.
[[nodiscard]] simulation_options suite_options(pool_shape shape, bool lockstep, std::uint16_t ranks = 8);

/// 5 traces x {unified, decode, pd} x {independent, lockstep} x `utilisations`.
[[nodiscard]] std::vector<scenario> main_scenarios(const std::vector<suite_trace>& traces,
                                                   const std::vector<double>& utilisations,
                                                   const core::policy_options& tuning = {});

/// `policy`: a name, or oracle (headroom with the true state), oracle_least_kv, headroom_fcfs (those who wait for a
/// rank go in order of arrival).
[[nodiscard]] policy_result run_scenario(const scenario& s, const workload& load, const std::string& policy);

/// Sets the policy of that name, see run_scenario.
void apply_policy(std::string_view policy, simulation_options& options);

/// Calls `each(i)` for 0 .. count-1 on `threads` threads.
void in_parallel(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& each);

} // namespace rankwise::sim
