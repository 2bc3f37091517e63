#pragma once

#include "app/sim/sim_runs.hpp"

#include <vector>

namespace rankwise::app {

/// Prints a row of figures for each run; on a terminal the best of each column is bold, the oracle's aside.
void print_table(const std::vector<policy_run>& runs);

/// Prints the figures of each class of requests (priority, deadline), where there are several to tell apart.
void print_classes(const std::vector<policy_run>& runs);

} // namespace rankwise::app
