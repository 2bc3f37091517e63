#pragma once

#include "app/sim/sim_options.hpp"

namespace rankwise::app {

/// Runs the comparison of docs/placement.md (--suite), prints every figure with its target, and writes them all as JSON
/// when the options ask for that. True when every figure holds.
[[nodiscard]] bool run_suite(const sim_options& o);

} // namespace rankwise::app
