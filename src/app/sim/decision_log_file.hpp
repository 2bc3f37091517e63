#pragma once

#include "record/decision_log.hpp"
#include "sim/simulation_options.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace rankwise::app {

/// Writes lines to a file at once: nobody waits for a simulation that writes.
class plain_lines final : public record::line_sink {
 public:
  explicit plain_lines(const std::filesystem::path& path) : path_(path), file_(path) {}
  void write(std::string&& line) noexcept override { file_ << line << '\n'; }
  void lose() noexcept override { file_.setstate(std::ios::badbit); }
  /// Throws std::runtime_error naming the file when not all of it could be written.
  void close();

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The decision log of one simulation: what its controllers were told and decided, for `rankwise replay-decisions`.
/// Owns the file and a writer for each controller; it must outlive the simulation.
class decision_log_file {
 public:
  /// Sets the recorder of `options`; an empty `file` does nothing. With `several` policies the policy stands in the
  /// file's name. Throws std::runtime_error for the oracle, which decides by what no controller is told.
  decision_log_file(const std::string& file, const std::string& policy, bool several, sim::simulation_options& options);
  /// The simulation is over. Throws std::runtime_error naming the file when not all of it could be written.
  void close();

 private:
  std::unique_ptr<plain_lines> sink_;
  std::vector<std::unique_ptr<record::decision_writer>> writers_;
};

} // namespace rankwise::app
