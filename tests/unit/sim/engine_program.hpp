#pragma once

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

/// A program started by a test; killed at the end of its scope when it still runs.
namespace rankwise::app {

class engine_program {
 public:
  /// Standard output goes to the file `out`, when given.
  explicit engine_program(const std::vector<std::string>& command, const std::string& out = "/dev/null") {
    std::vector<char*> arguments;
    for (const std::string& word : command) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int file = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDOUT_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~engine_program() {
    if (!exit_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  engine_program(const engine_program&) = delete;
  engine_program& operator=(const engine_program&) = delete;

  void signal(int number) const { kill(pid_, number); }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Exit code, or 128 + the signal that ended it; nullopt when it still runs after `limit`.
  std::optional<int> wait(std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!exit_) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      } else if (std::chrono::steady_clock::now() > until) {
        return std::nullopt;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    return exit_;
  }

 private:
  pid_t pid_ = -1;
  std::optional<int> exit_;
};

} // namespace rankwise::app
