#pragma once

#include "core/base/time.hpp"

#include <cstdint>
#include <deque>
#include <random>

namespace rankwise::core {

struct restart_limits {
  std::uint32_t restarts_max = 5; ///< at most this many restarts within `window`; 0 = no limit
  duration window = std::chrono::seconds{30};
  duration backoff_min = std::chrono::milliseconds{10}; ///< before the first restart of a quiet child
  duration backoff_max = std::chrono::seconds{2};
  double jitter = 0.2; ///< a backoff b becomes b × (1 ± jitter)
};

/// One child's restarts: how long to wait before the next one, or that the limit is reached. The backoff doubles with
/// each restart inside the window and falls back to the minimum when the window is empty again.
class restart_policy {
 public:
  explicit restart_policy(restart_limits limits) : limits_(limits) {}

  struct decision {
    bool restart = false; ///< false: the limit is reached; park the child or give up
    duration backoff{};
  };

  /// The child died at `now`.
  template <class Random>
  decision on_death(timestamp now, Random& random) {
    while (!recent_.empty() && now - recent_.front() >= limits_.window)
      recent_.pop_front();
    if (limits_.restarts_max != 0 && recent_.size() >= limits_.restarts_max)
      return {};
    auto backoff = limits_.backoff_min;
    for (std::size_t i = 0; i < recent_.size() && backoff < limits_.backoff_max; ++i)
      backoff *= 2;
    backoff = std::min(backoff, limits_.backoff_max);
    recent_.push_back(now);
    if (recent_.size() > remembered_max)
      recent_.pop_front();
    // 53 random bits: uniform in [0, 1) and the same on every standard library.
    const double unit = static_cast<double>(random() >> 11) * 0x1.0p-53;
    const double factor = 1.0 + limits_.jitter * (2.0 * unit - 1.0);
    return {true, duration{static_cast<duration::rep>(static_cast<double>(backoff.count()) * factor)}};
  }

  /// A parked child is tried again: it starts with a clean record.
  void reset() { recent_.clear(); }

 private:
  static constexpr std::size_t remembered_max = 64; // without a limit the window would grow with the crash rate

  restart_limits limits_;
  std::deque<timestamp> recent_;
};

} // namespace rankwise::core
