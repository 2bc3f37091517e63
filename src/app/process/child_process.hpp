#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace rankwise::app {

/// A child process whose standard output is read line by line; its standard error goes to a file. It is killed when
/// this object or the parent process ends.
class child_process {
 public:
  /// `arguments` without the program itself. Throws std::runtime_error when it cannot be started.
  child_process(const std::string& program, const std::vector<std::string>& arguments, const std::string& error_file);
  ~child_process();
  child_process(child_process&& other) noexcept;
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  child_process& operator=(child_process&&) = delete;

  /// The rest of the first line, from now on, that begins with `prefix`; nullopt when none came in time.
  std::optional<std::string> wait_line(const std::string& prefix, std::chrono::milliseconds timeout);

  void signal(int number) const;
  /// SIGTERM, and SIGKILL for what has not ended in time. The exit code, or 128 + signal.
  int end(std::chrono::milliseconds timeout);
  /// The exit code, or 128 + signal, of a process that ends by itself; nullopt: not in time, it goes on.
  std::optional<int> wait_end(std::chrono::milliseconds timeout);
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string buffer_;
};

/// Path of the running program.
[[nodiscard]] std::string own_program();

} // namespace rankwise::app
