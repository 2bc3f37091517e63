#pragma once

#include <cstdint>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <span>
#include <stdexcept>

namespace rankwise::io {

/// Waits for any of some descriptors. For ZeroMQ's sockets, by their ZMQ_FD, this costs one system call however many
/// there are, where zmq_poll asks each socket several times. The price is ZeroMQ's rule for that descriptor: it tells
/// that something happened, not what, so the socket has to be used until it says EAGAIN.
class descriptor_poll {
 public:
  descriptor_poll() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (fd_ < 0)
      throw std::runtime_error("epoll_create1: out of file descriptors");
  }
  ~descriptor_poll() { ::close(fd_); }
  descriptor_poll(const descriptor_poll&) = delete;
  descriptor_poll& operator=(const descriptor_poll&) = delete;

  /// `owner` comes back from wait().
  void add(int fd, void* owner) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = owner;
    if (::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event) != 0)
      throw std::runtime_error("epoll_ctl: cannot watch a socket");
  }
  /// Before the descriptor is closed.
  void remove(int fd) noexcept { ::epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr); }

  /// The owners of descriptors that are readable, at most 64 of them; the rest comes next time.
  [[nodiscard]] std::span<void* const> wait(int timeout_ms) noexcept {
    const int count = ::epoll_wait(fd_, events_.data(), static_cast<int>(events_.size()), timeout_ms);
    for (int i = 0; i < count; ++i)
      owners_[static_cast<std::size_t>(i)] = events_[static_cast<std::size_t>(i)].data.ptr;
    return {owners_.data(), static_cast<std::size_t>(count < 0 ? 0 : count)};
  }

 private:
  int fd_;
  std::array<epoll_event, 64> events_{};
  std::array<void*, 64> owners_{};
};

/// Wakes a wait from another thread.
class wake_up {
 public:
  wake_up() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0)
      throw std::runtime_error("eventfd: out of file descriptors");
  }
  ~wake_up() { ::close(fd_); }
  wake_up(const wake_up&) = delete;
  wake_up& operator=(const wake_up&) = delete;

  void raise() noexcept {
    if (pending_.exchange(true, std::memory_order_seq_cst))
      return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
  }
  void lower() noexcept {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
    pending_.store(false, std::memory_order_seq_cst);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  int fd_;
  std::atomic<bool> pending_{false};
};

} // namespace rankwise::io
