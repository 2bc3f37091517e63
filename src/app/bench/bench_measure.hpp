#pragma once

#include <algorithm>
#include <cstddef>
#include <sys/types.h>
#include <vector>

namespace rankwise::app {

/// 0 without values; reorders them.
template <class Number>
[[nodiscard]] double quantile(std::vector<Number>& values, double q) {
  if (values.empty())
    return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at);
}

/// User and system time of a running process, threads that have ended included, in nanoseconds' resolution. Throws
/// std::runtime_error when there is no such process.
[[nodiscard]] double cpu_seconds(pid_t pid);

} // namespace rankwise::app
