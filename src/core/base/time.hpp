#pragma once

#include <chrono>

/// Time as everything under src/core and src/sim sees it: a parameter, never a call to the machine's clock.
namespace rankwise::core {

using duration = std::chrono::nanoseconds;

/// Nanoseconds since an origin that only the supplier of the clock knows; monotonic. Only differences have a meaning.
using timestamp = std::chrono::time_point<std::chrono::steady_clock, duration>;

/// Where a component asks what time it is. The node passes the steady clock, tests and the simulator a virtual one.
class clock {
 public:
  virtual ~clock() = default;
  [[nodiscard]] virtual timestamp now() const noexcept = 0;
};

/// A clock that stands still until it is told to move; for tests and for the simulator.
class manual_clock final : public clock {
 public:
  [[nodiscard]] timestamp now() const noexcept override { return now_; }
  void advance(duration by) noexcept { now_ += by; }
  void set(timestamp to) noexcept { now_ = to; }

 private:
  timestamp now_{};
};

/// Seconds as a double, for rates and for printing.
[[nodiscard]] constexpr double to_seconds(duration d) noexcept {
  return std::chrono::duration<double>(d).count();
}

/// The other way; for figures far below 292 years.
[[nodiscard]] constexpr duration from_seconds(double s) noexcept {
  return duration{static_cast<duration::rep>(s * 1e9)};
}

} // namespace rankwise::core
