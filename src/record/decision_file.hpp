#pragma once

#include "record/decision_log.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rankwise::record {

/// A decision log that goes on where an earlier process stopped, readable by its owner only, written by a thread of its
/// own, so that whoever has a line never waits for the disk. When the thread falls behind by more than the bound,
/// or the file is full, what comes is dropped and counted; the file says so in its place, since nothing after a gap can
/// be replayed.
class decision_file final : public line_sink {
 public:
  struct limits {
    std::size_t queued_bytes_max = std::size_t{64} << 20; ///< and as much again that is being written
    std::uint64_t file_bytes_max = std::uint64_t{4} << 30;
  };
  /// Throws std::runtime_error, with the reason, when the file cannot be written or has something else in it, which
  /// stays as it is.
  decision_file(const std::string& path, limits l);
  explicit decision_file(const std::string& path) : decision_file(path, limits{}) {}
  decision_file(const decision_file&) = delete;
  decision_file& operator=(const decision_file&) = delete;
  /// Writes what is queued.
  ~decision_file() override;

  void write(std::string&& line) noexcept override;
  void lose() noexcept override;
  [[nodiscard]] std::uint64_t lines_lost() const noexcept { return lost_all_.load(std::memory_order_relaxed); }

 private:
  void run();
  void write_lines(const std::vector<std::string>& lines) noexcept;
  void lost_one(const char* why) noexcept; // under the lock

  const limits limits_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::mutex mutex_; ///< guards those below
  std::condition_variable filled_;
  std::vector<std::string> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t bytes_ = 0; ///< ever queued
  std::uint64_t lost_ = 0;  ///< since the last line that was queued
  const char* why_lost_ = "";
  bool stop_ = false;
  bool failed_ = false; ///< of the thread alone: the disk took a part of a line
  std::atomic<std::uint64_t> lost_all_{0};
  std::thread thread_; ///< last: it uses all of the above
};

} // namespace rankwise::record
