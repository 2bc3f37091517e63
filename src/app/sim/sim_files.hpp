#pragma once

#include "app/sim/sim_options.hpp"
#include "app/sim/sim_runs.hpp"

#include <filesystem>
#include <string>

/// The files that `rankwise sim` writes of its runs. Each throws std::runtime_error naming a file that cannot be
/// written.
namespace rankwise::app {

/// The figures of all runs, as JSON (--json).
void write_figures(const sim_options& o, const policy_runs& played);

/// Every request with the time of its decision and its rank (--decisions), csv, a file for each policy.
void write_decisions(const sim_options& o, const policy_runs& played);

/// Every step of the engines (--steps), csv, a file for each policy.
void write_steps(const sim_options& o, const policy_runs& played);

/// Writes a text as a whole file, in place of what it held.
void write_file(const std::filesystem::path& path, const std::string& text);

/// The file of one policy: `path`, or, of several policies, `path` with the policy before its ending.
[[nodiscard]] std::filesystem::path file_of(std::filesystem::path path, const std::string& policy, bool several);

} // namespace rankwise::app
