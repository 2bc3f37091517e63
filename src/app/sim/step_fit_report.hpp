#pragma once

#include "app/sim/sim_options.hpp"

namespace rankwise::app {

/// Fits the four constants of a step's time to the steps in the file of --fit, prints them, and puts them in place of
/// those in the options. Throws std::runtime_error naming the place of the file that cannot be read.
void fit_steps(sim_options& o);

} // namespace rankwise::app
