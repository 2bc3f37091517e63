#include "core/placement/policies/power_of_two.hpp"

#include "core/placement/policies/rotation.hpp"

namespace rankwise::core {

std::optional<choice> power_of_two::choose(std::span<const rank_view> ranks, const placement_request& request) {
  if (ranks.empty())
    return std::nullopt;
  const auto [first, second] = two_at_random(ranks.size(), random_);
  const choice a{ranks[first].rank, *scorer_.score_of(ranks[first], request)};
  const choice b{ranks[second].rank, *scorer_.score_of(ranks[second], request)};
  return b.score < a.score ? b : a;
}

} // namespace rankwise::core
