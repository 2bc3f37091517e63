#pragma once

#include <atomic>
#include <cstdint>

namespace rankwise::io::grpc {

/// A count with one writing thread and any number of readers, so that adding needs no locked instruction.
class counter {
 public:
  void add(std::uint64_t n = 1) noexcept { value_.store(get() + n, std::memory_order_relaxed); }
  void sub(std::uint64_t n = 1) noexcept { value_.store(get() - n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

} // namespace rankwise::io::grpc
