#pragma once

#include "core/placement/policy.hpp"

#include <cstddef>
#include <random>
#include <utility>

namespace rankwise::core {

/// The rank with the lowest score; among equals the first at or after `turn`, which then moves behind the choice, so
/// that equal ranks take turns whatever their numbers.
template <class Score>
std::optional<choice> lowest_in_turn(std::span<const rank_view> ranks, std::uint32_t& turn, Score score) {
  if (ranks.empty())
    return std::nullopt;
  std::size_t first = 0;
  while (first < ranks.size() && ranks[first].rank < turn)
    ++first;
  std::size_t best = ranks.size();
  double best_score = 0;
  const auto look = [&](std::size_t from, std::size_t to) {
    for (auto i = from; i < to; ++i) {
      const double value = score(ranks[i]);
      if (best == ranks.size() || value < best_score) {
        best = i;
        best_score = value;
      }
    }
  };
  look(first, ranks.size());
  look(0, first);
  turn = ranks[best].rank + 1u;
  return choice{ranks[best].rank, best_score};
}

/// Two different places of `count`; twice the same one when there is no other.
inline std::pair<std::size_t, std::size_t> two_at_random(std::size_t count, std::mt19937_64& random) {
  const auto first = random() % count;
  return {first, count == 1 ? first : (first + 1 + random() % (count - 1)) % count};
}

} // namespace rankwise::core
