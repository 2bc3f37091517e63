#pragma once

#include "core/request/history.hpp"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace rankwise::app {

/// Writes the history of all RequestManagers as fixed text lines, for `rankwise check-history`. Buffered; flushed when
/// closed. Several threads may record: a line is written by one call of stdio, which locks its file.
class history_file final : public core::history_recorder {
 public:
  /// Throws std::runtime_error when the file cannot be written.
  explicit history_file(const std::string& path);
  void record(const core::history_event& event) noexcept override;

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

struct history_verdict {
  std::uint64_t events = 0;
  std::uint64_t accepted = 0;
  std::uint64_t ended = 0;
  std::vector<std::string> violations;
};

/// Reads a file of history_file and checks it. Throws std::runtime_error naming file and line when it cannot be read.
[[nodiscard]] history_verdict check_history(const std::string& path);

} // namespace rankwise::app
