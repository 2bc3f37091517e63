#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// `rankwise sim`: policies on a simulated pool. Exit codes: 0; 1 when a figure of the suite does not hold; 2 when a
/// workload cannot be read, a policy is not known or a file cannot be written.
void add_sim_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
