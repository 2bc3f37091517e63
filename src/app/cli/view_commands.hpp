#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// `rankwise status`, `actors`, `ranks`, `requests`, `events`, `why`: ask a running node's admin HTTP. Exit codes: 0
/// answered, 1 not found, 3 no answer, 4 (`why`) answered without a pool whose controller was silent.
void add_view_commands(CLI::App& app, int& exit_code);

/// `rankwise top`: the ranks live, in 80 columns. Exit codes as above.
void add_top_command(CLI::App& app, int& exit_code);

/// `rankwise record`: 0 done, 1 the node was restarted, 2 the file cannot be written, 3 no answer, 4 requests were
/// lost. `rankwise replay-decisions`: 0 all the same, 1 one differs, 2 the file cannot be read, 4 it lacks lines.
void add_record_commands(CLI::App& app, int& exit_code);

/// `rankwise drain`, `undrain`, `remove`, `policy set`: change a running node. Exit codes: 0 done, 1 refused, 3 no
/// answer, 4 not done in time.
void add_operator_commands(CLI::App& app, int& exit_code);

} // namespace rankwise::app
