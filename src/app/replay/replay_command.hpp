#pragma once

#include "sim/workload.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>

namespace CLI {
class App;
}

/// `rankwise replay`: a workload against a running node.
namespace rankwise::app {

/// The options by which a command line chooses a workload; shared by `replay` and `demo`.
struct workload_choice {
  std::string trace; ///< file or folder; empty = the built-in mix
  double speed = 1;
  std::size_t limit = 0;      ///< 0 = all; the built-in mix has 1,000 requests then
  double duration_s = 0;      ///< 0 = all
  double requests_per_s = 20; ///< of the built-in mix, before `speed`
  std::uint64_t seed = 1;
};

/// Declares --trace, --speed, --limit, --duration, --rate and --seed.
void add_workload_options(CLI::App& command, workload_choice& choice);

/// Errors: a sentence that names file, line, field and value.
[[nodiscard]] tl::expected<sim::workload, std::string> choose_workload(const workload_choice& choice);

/// Exit codes: 0, 1 when a request was lost or a token wrong (unless --no-fail), 2 when the workload cannot be read or
/// the JSON file not be written.
void add_replay_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
