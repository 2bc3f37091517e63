#include "core/policies/headroom.hpp"

#include "core/policies/rotation.hpp"

#include <algorithm>

namespace rankwise::core {

namespace {

// A capacity that an engine did not register must not divide by zero; any rank then looks equally large.
constexpr double unknown_kv_capacity = 1 << 20;
constexpr double unknown_max_running = 256;
// Dwarfs every other term, so that fitting ranks come first and the least overfull one of the rest.
constexpr double does_not_fit = 1000;

} // namespace

double headroom::score(const rank_view& rank, const placement_request& request) const noexcept {
  const double capacity = rank.kv_capacity != 0 ? static_cast<double>(rank.kv_capacity) : unknown_kv_capacity;
  const double running = rank.max_running != 0 ? rank.max_running : unknown_max_running;
  const double expected = static_cast<double>(request.prompt_tokens) +
                          options_.headroom_output_share * static_cast<double>(request.max_new_tokens);
  const double taken = (static_cast<double>(rank.tokens) + expected) / capacity;
  const double to_prefill = static_cast<double>(rank.prefill_tokens + request.prompt_tokens) / capacity;
  const double requests = (rank.requests + 1.0) / running;
  double result = taken + options_.headroom_prefill_weight * to_prefill + options_.headroom_request_weight * requests;
  result /= std::clamp(rank.share, 0.01, 1.0);
  if (static_cast<double>(rank.tokens + request.prompt_tokens) > capacity)
    result += does_not_fit * taken;
  return result;
}

std::optional<choice> headroom::choose(std::span<const rank_view> ranks, const placement_request& request) {
  return lowest_in_turn(ranks, turn_, [&](const rank_view& rank) { return score(rank, request); });
}

} // namespace rankwise::core
