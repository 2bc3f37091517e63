#include "record/decision_file.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace rankwise::record {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error("decision_log: cannot write " + path + ": " + why);
}

[[noreturn]] void fail_with_errno(const std::string& path) {
  fail(path, std::generic_category().message(errno));
}

std::string read_at(int fd, off_t from, std::size_t bytes, const std::string& path) {
  std::string text(bytes, '\0');
  const auto got = ::pread(fd, text.data(), bytes, from);
  if (got < 0)
    fail_with_errno(path);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

/// Bytes of the whole lines of a file that is a decision log or empty; what a killed process left of a line does not
/// count.
off_t whole_lines(int fd, const std::string& path) {
  struct stat file {};
  if (::fstat(fd, &file) != 0)
    fail_with_errno(path);
  if (!S_ISREG(file.st_mode))
    fail(path, "it is no regular file");
  constexpr off_t block = 65'536;
  const auto begin = read_at(fd, 0, block, path);
  // The keys of a line are in order of the alphabet. Whatever the kind of a line, it begins with one of these; the
  // first of a file need not be the first of a log, where somebody cut away the oldest.
  constexpr std::array beginnings{R"({"c":)", R"({"attempt":)", R"({"is":"lost")"};
  if (!begin.empty() &&
      std::none_of(beginnings.begin(), beginnings.end(), [&](std::string_view b) { return begin.starts_with(b); }))
    fail(path, "it exists and is no decision log");
  for (auto end = file.st_size; end > 0;) {
    const auto from = std::max<off_t>(end - block, 0);
    const auto text = read_at(fd, from, static_cast<std::size_t>(end - from), path);
    if (const auto last = text.rfind('\n'); last != std::string::npos)
      return from + static_cast<off_t>(last) + 1;
    end = from;
  }
  return 0;
}

std::string lost_line(std::uint64_t lines, const char* why) {
  return fmt::format(R"({{"is":"lost","lines":{},"why":"{}"}})", lines, why);
}

} // namespace

decision_file::decision_file(const std::string& path, limits l) : limits_(l), file_(nullptr, &std::fclose) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR);
  if (fd < 0)
    fail_with_errno(path);
  file_.reset(::fdopen(fd, "a"));
  if (!file_) {
    ::close(fd);
    fail_with_errno(path);
  }
  const auto kept = whole_lines(fd, path);
  if (::ftruncate(fd, kept) != 0 || ::fchmod(fd, S_IRUSR | S_IWUSR) != 0)
    fail_with_errno(path);
  bytes_ = static_cast<std::uint64_t>(kept);
  thread_ = std::thread{[this] { run(); }};
}

decision_file::~decision_file() {
  {
    const std::lock_guard lock{mutex_};
    stop_ = true;
  }
  filled_.notify_one();
  thread_.join();
}

void decision_file::lost_one(const char* why) noexcept {
  why_lost_ = why;
  ++lost_;
  lost_all_.fetch_add(1, std::memory_order_relaxed);
}

void decision_file::lose() noexcept {
  const std::lock_guard lock{mutex_};
  lost_one("out of memory");
}

void decision_file::write(std::string&& line) noexcept {
  const std::lock_guard lock{mutex_};
  const bool was_empty = queue_.empty();
  const bool slow = queued_bytes_ + line.size() > limits_.queued_bytes_max;
  if (slow || bytes_ + line.size() > limits_.file_bytes_max) {
    lost_one(slow ? "the disk was too slow" : "the file is full");
    return;
  }
  const auto size = line.size();
  try {
    if (lost_ > 0) {
      queue_.push_back(lost_line(lost_, why_lost_));
      lost_ = 0;
    }
    queue_.push_back(std::move(line));
    queued_bytes_ += size;
    bytes_ += size + 1;
  } catch (const std::exception&) {
    lost_one("out of memory");
  }
  if (was_empty && !queue_.empty())
    filled_.notify_one();
}

void decision_file::write_lines(const std::vector<std::string>& lines) noexcept {
  for (const auto& line : lines) {
    // After a line that a full disk has cut nothing may follow, or a reader would find it in the middle.
    if (failed_ || std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
        std::fputc('\n', file_.get()) == EOF || std::fflush(file_.get()) != 0) {
      failed_ = true;
      lost_all_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void decision_file::run() {
  std::vector<std::string> taken;
  std::unique_lock lock{mutex_};
  for (;;) {
    filled_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    taken.swap(queue_);
    queued_bytes_ = 0;
    const bool last = stop_;
    const auto lost = last ? std::exchange(lost_, 0) : 0;
    const auto* why = why_lost_;
    lock.unlock();
    write_lines(taken);
    taken.clear();
    if (lost > 0) {
      try {
        write_lines({lost_line(lost, why)});
      } catch (const std::exception&) {
        // Counted; the file just ends.
      }
    }
    lock.lock();
    if (last && queue_.empty())
      return;
  }
}

} // namespace rankwise::record
