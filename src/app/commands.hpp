#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// Declares every command of the program. The one that is named leaves its exit code in `exit_code`.
void add_all_commands(CLI::App& app, int& exit_code);

} // namespace rankwise::app
