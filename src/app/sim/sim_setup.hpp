#pragma once

#include "app/sim/sim_options.hpp"
#include "core/placement/policy.hpp"
#include "sim/simulation_options.hpp"
#include "sim/step_time.hpp"
#include "sim/workload.hpp"

#include <string>
#include <vector>

/// From the options of `rankwise sim` to what the simulation is told.
namespace rankwise::app {

/// The pool of a run, without its policy. Throws std::runtime_error naming an --event that makes no sense.
[[nodiscard]] sim::simulation_options simulation_of(const sim_options& o, const sim::workload& load);

/// The tuning of the headroom policy.
[[nodiscard]] core::policy_options tuning_of(const sim_options& o);

/// The constants by which a simulated engine's step takes its time.
[[nodiscard]] sim::step_time_constants step_time_of(const sim_options& o);

/// Throws std::runtime_error naming a policy that there is not, and those that there are.
void check_policies(const std::vector<std::string>& policies);

} // namespace rankwise::app
