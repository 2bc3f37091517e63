#pragma once

#include "core/policy.hpp"

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
  std::optional<choice> best;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& rank = ranks[(first + i) % ranks.size()];
    const double value = score(rank);
    if (!best || value < best->score)
      best = choice{rank.rank, value};
  }
  turn = best->rank + 1u;
  return best;
}

} // namespace rankwise::core
