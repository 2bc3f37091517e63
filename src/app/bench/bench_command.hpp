#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// `rankwise bench node` and, hidden, `rankwise bench-server`.
void add_bench_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
