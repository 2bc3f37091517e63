#pragma once

#include "app/engine/engine_options.hpp"

#include <functional>

namespace CLI {
class App;
}

/// `rankwise engine`: simulated ranks as a real process on the real wire.
namespace rankwise::app {

/// Exit codes of `run_engine`.
inline constexpr int engine_exit_stopped = 0;          ///< SIGTERM or SIGINT, after ENGINE_CORE_DEAD from each rank
inline constexpr int engine_exit_handshake_failed = 3; ///< no INIT in time, or one without endpoints
inline constexpr int engine_exit_cannot_listen =
    4; ///< a prefill rank's bootstrap port is taken, or an endpoint is no endpoint
inline constexpr int engine_exit_crashed = 70; ///< a crash that was asked for by --fault

/// Serves the ranks until SIGTERM or SIGINT. All ranks of the process share one thread, which sleeps while nothing is
/// due. Prints one JSON line per rank that joined on standard output unless quiet, and errors on standard error. A rank
/// registers once and never dials again; its sockets reconnect by themselves, as a real engine's do. Blocks SIGTERM and
/// SIGINT in the calling thread.
[[nodiscard]] int run_engine(const engine_options& options);

/// Declares the subcommand. When the parsed command line chose it, CLI11 calls back and `exit_code` is set.
void add_engine_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
