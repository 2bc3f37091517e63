#pragma once

#include "sim/simulation_options.hpp"
#include "sim/simulation_result.hpp"
#include "sim/workload.hpp"

namespace rankwise::sim {

/// Plays a workload on a pool of simulated ranks in virtual time: the node's own pool_controller (policy, ledger,
/// health, admission) decides, and the ranks of `rankwise engine` do the work. One thread; the same options give the
/// same run. The requests must be in order of `arrival_s`, and follow earlier ones only. Throws std::invalid_argument
/// when a request follows a later one or the pool has no rank.
[[nodiscard]] simulation_result simulate(const workload& load, const simulation_options& options);

/// Seconds from arrival to first token of a prompt of that length on an idle pool of this shape.
[[nodiscard]] double idle_ttft_s(const simulation_options& options, std::uint32_t input_tokens);

} // namespace rankwise::sim
