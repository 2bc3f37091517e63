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

/// The comparison of docs/placement.md: traces x pools x couplings x utilisations, every peer's rule beside ours.
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

inline constexpr std::string_view peer_policies[] = {
    "round_robin", "total_requests", "total_tokens",     "vllm_counts",  "vllm",
    "dynamo",      "smg_least_load", "smg_power_of_two", "smg_servicer", "llm_d"};

/// The engines of a suite: H100 figures, KV and chunk of `engine_rank_options`, no prefix cache unless the scenario
/// asks for one.
[[nodiscard]] simulation_options suite_options(pool_shape shape, bool lockstep, std::uint16_t ranks = 8);

/// 5 traces x {unified, decode, pd} x {independent, lockstep} x `utilisations`.
[[nodiscard]] std::vector<scenario> main_scenarios(const std::vector<suite_trace>& traces,
                                                   const std::vector<double>& utilisations);

[[nodiscard]] policy_result run_scenario(const scenario& s, const workload& load, const std::string& policy);

/// Calls `each(i)` for 0 .. count-1 on `threads` threads.
void in_parallel(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& each);

} // namespace rankwise::sim
