#include "sim/gap_histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace rankwise::sim {

using core::duration;

namespace {

/// Each power of two has this many bits of buckets; lengths below it have one each.
constexpr unsigned gap_sub_bits = 6;

std::size_t gap_bucket(std::uint64_t ns) noexcept {
  if (ns < (1U << gap_sub_bits))
    return ns;
  const auto exponent = static_cast<unsigned>(std::bit_width(ns)) - 1 - gap_sub_bits;
  return (std::size_t{exponent} << gap_sub_bits) + (ns >> exponent);
}

double gap_bucket_end_s(std::size_t bucket) noexcept {
  if (bucket < (2U << gap_sub_bits))
    return static_cast<double>(bucket + 1) * 1e-9;
  const auto exponent = (bucket >> gap_sub_bits) - 1;
  const auto mantissa = bucket - (exponent << gap_sub_bits);
  return std::ldexp(static_cast<double>(mantissa + 1), static_cast<int>(exponent)) * 1e-9;
}

} // namespace

void gap_histogram::add(duration gap, std::uint64_t count) {
  const auto bucket = gap_bucket(static_cast<std::uint64_t>(std::max<duration::rep>(gap.count(), 0)));
  if (bucket >= counts_.size())
    counts_.resize(bucket + 1);
  counts_[bucket] += count;
  count_ += count;
  sum_s_ += core::to_seconds(gap) * static_cast<double>(count);
}

double gap_histogram::quantile_s(double q) const {
  if (count_ == 0)
    return std::numeric_limits<double>::quiet_NaN();
  const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(count_ - 1));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen > wanted)
      return gap_bucket_end_s(i);
  }
  return gap_bucket_end_s(counts_.size() - 1);
}

double gap_histogram::mean_s() const {
  return count_ == 0 ? std::numeric_limits<double>::quiet_NaN() : sum_s_ / static_cast<double>(count_);
}

std::vector<std::pair<double, std::uint64_t>> gap_histogram::buckets() const {
  std::vector<std::pair<double, std::uint64_t>> result;
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] > 0)
      result.emplace_back(gap_bucket_end_s(i), counts_[i]);
  return result;
}

} // namespace rankwise::sim
