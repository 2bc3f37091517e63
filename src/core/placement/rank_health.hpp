#pragma once

#include "core/base/time.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

/// Ranks whose engine ends requests with errors. Such a rank looks empty, and so would get everything.
namespace rankwise::core {

struct health_options {
  double ejected_share_max = 0.5; ///< of a pool's ranks; 0 = errors eject nobody
  std::uint32_t errors_min = 5;   ///< within `memory`, and more than half of what ended, to be ejected
  duration memory = std::chrono::seconds{10};
  duration ejection_min = std::chrono::seconds{5}; ///< doubles each time in a row ...
  duration ejection_max = std::chrono::seconds{60};
};

/// What one rank's requests ended with lately.
class rank_health {
 public:
  void on_ended(std::uint32_t completed, std::uint32_t errors, timestamp now, const health_options& options) {
    fade(now, options);
    completed_ += completed;
    errors_ += errors;
    if (completed > 0 && errors == 0 && now >= ejected_until_)
      ejections_ = 0;
    if (now < ejected_until_ || errors_ < options.errors_min || errors_ <= completed_)
      return;
    const double factor = std::exp2(std::min(ejections_, 16U));
    const auto longest = static_cast<double>(options.ejection_max.count());
    ejected_until_ = now + duration{static_cast<duration::rep>(
                               std::min(static_cast<double>(options.ejection_min.count()) * factor, longest))};
    ++ejections_;
    errors_ = completed_ = 0; // what it does after that is judged afresh
  }
  /// A new process.
  void reset() { *this = rank_health{}; }

  [[nodiscard]] timestamp ejected_until() const noexcept { return ejected_until_; }
  [[nodiscard]] bool unhealthy(timestamp now) const noexcept { return now < ejected_until_; }
  /// Factor of its share of the work, (0, 1].
  [[nodiscard]] double share() const noexcept {
    const double all = errors_ + completed_;
    return all < 1 ? 1 : std::clamp(1 - errors_ / all, 0.1, 1.0);
  }

 private:
  void fade(timestamp now, const health_options& options) {
    const double age = to_seconds(now - faded_at_);
    faded_at_ = now;
    const double keep = std::exp(-age / std::max(to_seconds(options.memory), 1e-3));
    completed_ *= keep;
    errors_ *= keep;
  }

  double completed_ = 0; // faded
  double errors_ = 0;
  timestamp faded_at_{};
  timestamp ejected_until_{};
  std::uint32_t ejections_ = 0; // in a row
};

/// Which of a pool's ranks may get work, by `unhealthy`. When more of them are unhealthy than may be ejected, the fault
/// is hardly theirs: then health is ignored, rather than refusing everything or crushing the few that are left.
[[nodiscard]] inline std::vector<bool> eligible(const std::vector<bool>& unhealthy, double ejected_share_max) {
  const auto bad = static_cast<std::size_t>(std::count(unhealthy.begin(), unhealthy.end(), true));
  const auto most = static_cast<std::size_t>(static_cast<double>(unhealthy.size()) * ejected_share_max);
  std::vector<bool> result(unhealthy.size(), true);
  if (bad > most || bad == unhealthy.size())
    return result;
  for (std::size_t i = 0; i < unhealthy.size(); ++i)
    result[i] = !unhealthy[i];
  return result;
}

} // namespace rankwise::core
