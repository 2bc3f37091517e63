#include "record/decision_file.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>
#include <utility>

namespace rankwise::record {

namespace {

/// Bytes of the whole lines in the file; what a killed process left of a line does not count.
off_t whole_lines(const std::string& path) {
  std::ifstream in{path, std::ios::binary | std::ios::ate};
  auto size = in ? static_cast<off_t>(in.tellg()) : off_t{0};
  for (char last = 0; size > 0; --size) {
    in.seekg(size - 1);
    if (in.get(last) && last == '\n')
      break;
  }
  return size;
}

std::string lost_line(std::uint64_t lines, const char* why) {
  return fmt::format(R"({{"is":"lost","lines":{},"why":"{}"}})", lines, why);
}

} // namespace

decision_file::decision_file(const std::string& path, limits l) : limits_(l), file_(nullptr, &std::fclose) {
  const auto kept = whole_lines(path);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd >= 0 && ::ftruncate(fd, kept) == 0)
    file_.reset(::fdopen(fd, "a"));
  if (!file_) {
    if (fd >= 0)
      ::close(fd);
    throw std::runtime_error("decision_log: cannot write " + path);
  }
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

void decision_file::write(std::string&& line) noexcept {
  const std::lock_guard lock{mutex_};
  const bool was_empty = queue_.empty();
  const bool slow = queued_bytes_ + line.size() > limits_.queued_bytes_max;
  if (slow || bytes_ + line.size() > limits_.file_bytes_max) {
    why_lost_ = slow ? "the disk was too slow" : "the file is full";
    ++lost_;
    lost_all_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  try {
    if (lost_ > 0)
      queue_.push_back(lost_line(std::exchange(lost_, 0), why_lost_));
    queued_bytes_ += line.size();
    bytes_ += line.size() + 1;
    queue_.push_back(std::move(line));
  } catch (const std::exception&) {
    why_lost_ = "out of memory";
    ++lost_;
    lost_all_.fetch_add(1, std::memory_order_relaxed);
  }
  if (was_empty && !queue_.empty())
    filled_.notify_one();
}

void decision_file::run() {
  std::vector<std::string> taken;
  std::unique_lock lock{mutex_};
  for (;;) {
    filled_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    taken.swap(queue_);
    queued_bytes_ = 0;
    const bool last = stop_;
    if (last && lost_ > 0)
      taken.push_back(lost_line(std::exchange(lost_, 0), why_lost_));
    lock.unlock();
    for (auto& line : taken) {
      line += '\n';
      // After a line that a full disk has cut nothing may follow, or a reader would find it in the middle.
      if (failed_ || std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
          std::fflush(file_.get()) != 0) {
        failed_ = true;
        lost_all_.fetch_add(1, std::memory_order_relaxed);
      }
    }
    taken.clear();
    lock.lock();
    if (last && queue_.empty())
      return;
  }
}

} // namespace rankwise::record
