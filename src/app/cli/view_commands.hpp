#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// `rankwise status`, `actors`, `ranks`, `requests`: ask a running node's admin HTTP. Exit codes: 0 answered, 3 no
/// answer.
void add_view_commands(CLI::App& app, int& exit_code);

} // namespace rankwise::app
