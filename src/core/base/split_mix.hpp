#pragma once

#include <cstdint>

namespace rankwise::core {

inline constexpr std::uint64_t split_mix_step = 0x9e3779b97f4a7c15ULL;

/// SplitMix64 (Steele, Lea and Flood, 2014): a good hash of consecutive numbers.
[[nodiscard]] constexpr std::uint64_t split_mix(std::uint64_t x) noexcept {
  x += split_mix_step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

} // namespace rankwise::core
