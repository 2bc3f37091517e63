#pragma once

#include "core/base/time.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace rankwise::sim {

/// How often the gaps between the tokens of streams had which length: in buckets of 1/64 of a power of two, so that a
/// quantile is right to 1.6 %, however many gaps there are.
class gap_histogram {
 public:
  /// Counts `count` gaps of this length; one below 0 counts as 0.
  void add(core::duration gap, std::uint64_t count = 1);
  /// The length in seconds that a share `q` (0 to 1) of the gaps does not exceed; NaN when there are none.
  [[nodiscard]] double quantile_s(double q) const;
  /// The mean length in seconds, exact; NaN when there are no gaps.
  [[nodiscard]] double mean_s() const;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// The upper edge in seconds and the count of each bucket that is not empty, shortest first.
  [[nodiscard]] std::vector<std::pair<double, std::uint64_t>> buckets() const;

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_s_ = 0;
};

} // namespace rankwise::sim
