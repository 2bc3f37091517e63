#pragma once

namespace CLI {
class App;
}

namespace rankwise::app {

/// `rankwise demo`: the whole main job on this machine: a prefill and a decode pool of simulated ranks, a node, a
/// client. Exit codes: 0; 1 when a request was lost, a token was wrong or a promise of the history broken (unless
/// --no-fail); 2 when something could not be started or read.
void add_demo_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
