#pragma once

#include "app/sim/sim_runs.hpp"

#include <string>
#include <vector>

namespace rankwise::app {

/// Writes plots (SVG) of the runs into a folder, which is made when it is missing: TTFT and gaps of all policies, and
/// KV and queues of each policy over time. Throws std::runtime_error naming a file that cannot be written.
void plot_runs(const std::string& folder, const std::string& title, const std::vector<policy_run>& runs);

} // namespace rankwise::app
