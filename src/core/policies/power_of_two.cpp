#include "core/policies/power_of_two.hpp"

namespace rankwise::core {

std::optional<choice> power_of_two::choose(std::span<const rank_view> ranks, const placement_request& request) {
  if (ranks.empty())
    return std::nullopt;
  const auto first = random_() % ranks.size();
  if (ranks.size() == 1)
    return choice{ranks[0].rank, *scorer_.score_of(ranks[0], request)};
  const auto second = (first + 1 + random_() % (ranks.size() - 1)) % ranks.size();
  const choice a{ranks[first].rank, *scorer_.score_of(ranks[first], request)};
  const choice b{ranks[second].rank, *scorer_.score_of(ranks[second], request)};
  return b.score < a.score ? b : a;
}

} // namespace rankwise::core
