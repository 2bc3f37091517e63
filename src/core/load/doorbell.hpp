#pragma once

#include <atomic>
#include <cstdint>

namespace rankwise::core {

/// Wakes one waiting thread from a path that may neither block, allocate nor throw. Rings before the waiter looks are
/// kept, any number of them wakes it once.
class doorbell {
 public:
  void ring() noexcept {
    rings_.fetch_add(1, std::memory_order_release);
    rings_.notify_one();
  }

  /// Waits for a ring after the last one that `seen` knows of, and takes all there are. The caller ends the wait at
  /// shutdown by a ring of its own.
  void wait(std::uint32_t& seen) noexcept {
    rings_.wait(seen, std::memory_order_acquire);
    seen = rings_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<std::uint32_t> rings_{0};
};

} // namespace rankwise::core
