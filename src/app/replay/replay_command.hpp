#pragma once

#include "sim/workload.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>

namespace CLI {
class App;
}

/// `rankwise replay`: a workload against a running node.
namespace rankwise::app {

/// The options by which a command line chooses a workload; shared by `replay`, `demo` and `sim`.
struct workload_choice {
  std::string trace;              ///< file or folder; empty = a built-in workload
  std::string workload = "mixed"; ///< one of sim::built_in_workload_names
  double speed = 1;
  std::size_t limit = 0;      ///< 0 = all; a built-in workload has 1,000 requests then
  double duration_s = 0;      ///< 0 = all; not of a closed loop
  double requests_per_s = 20; ///< of a built-in workload that is no closed loop, before `speed`
  std::uint64_t seed = 1;
  std::size_t giant_every = 100;
  std::uint32_t clients = 64;
  std::optional<double> think_s; ///< unset = the workload's own

  [[nodiscard]] bool is_closed_loop() const { return trace.empty() && workload == "closed-loop"; }
};

/// Declares --trace, --workload with its options, --speed, --limit, --duration, --rate and --seed.
void add_workload_options(CLI::App& command, workload_choice& choice);

/// Errors: a sentence that names file, line, field and value.
[[nodiscard]] tl::expected<sim::workload, std::string> choose_workload(const workload_choice& choice);

/// Exit codes: 0, 1 when a request was lost or a token wrong (unless --no-fail), 2 when the workload cannot be read or
/// the JSON file not be written.
void add_replay_command(CLI::App& app, int& exit_code);

} // namespace rankwise::app
