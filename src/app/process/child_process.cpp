#include "app/process/child_process.hpp"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace rankwise::app {

namespace {

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace

child_process::child_process(const std::string& program, const std::vector<std::string>& arguments,
                             const std::string& error_file) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::runtime_error("pipe: out of file descriptors");
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(program.c_str()));
  for (const auto& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0)
    throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent)
      ::_exit(127);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::setpgid(0, 0); // an interrupt typed at the parent is the parent's to pass on
    ::dup2(ends[1], STDOUT_FILENO);
    const int errors = ::open(error_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (errors >= 0)
      ::dup2(errors, STDERR_FILENO);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  output_ = ends[0];
}

child_process::child_process(child_process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)),
      buffer_(std::move(other.buffer_)) {}

child_process::~child_process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGCONT);
    end(std::chrono::milliseconds{500});
  }
  if (output_ >= 0)
    ::close(output_);
}

std::optional<std::string> child_process::wait_line(const std::string& prefix, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    for (auto newline = buffer_.find('\n'); newline != std::string::npos; newline = buffer_.find('\n')) {
      auto line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      if (line.starts_with(prefix))
        return line.substr(prefix.size());
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0)
      return std::nullopt;
    pollfd item{output_, POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(left)) <= 0)
      continue;
    std::array<char, 4096> bytes{};
    const auto count = ::read(output_, bytes.data(), bytes.size());
    if (count <= 0)
      return std::nullopt;
    buffer_.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

void child_process::signal(int number) const {
  if (pid_ > 0)
    ::kill(pid_, number);
}

int child_process::end(std::chrono::milliseconds timeout) {
  if (pid_ <= 0)
    return 0;
  ::kill(pid_, SIGTERM);
  if (const auto code = wait_end(timeout))
    return *code;
  ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return exit_code_of(status);
}

std::optional<int> child_process::wait_end(std::chrono::milliseconds timeout) {
  if (pid_ <= 0)
    return 0;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= deadline)
      return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  pid_ = -1;
  return exit_code_of(status);
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

} // namespace rankwise::app
