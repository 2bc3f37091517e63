#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// `rankwise node`: runs until SIGTERM or SIGINT. Exit codes: 0 stopped, 4 a second signal cut open streams, 1 an actor
/// crashed too often, 2 bad configuration or an address that cannot be bound.
void add_node_command(CLI::App& app, int& exit_code);

/// `rankwise config check` and `config show`. Exit codes: 0 good, 2 errors, one line each.
void add_config_command(CLI::App& app, int& exit_code);

/// `rankwise check-history FILE`. Exit codes: 0 clean, 1 violations, 2 unreadable.
void add_history_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
