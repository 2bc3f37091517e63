#include "core/placement/policies/upstream.hpp"

#include "core/placement/policies/rotation.hpp"

#include <algorithm>
#include <tuple>

namespace rankwise::core {

std::optional<choice> round_robin::choose(std::span<const rank_view> ranks, const placement_request&) {
  return lowest_in_turn(ranks, turn_, [](const rank_view&) { return 0.0; });
}

std::optional<choice> follow_bootstrap_room::choose(std::span<const rank_view> ranks,
                                                    const placement_request& request) {
  if (!request.bootstrap_room || request.dp_size == 0)
    return lowest_in_turn(ranks, turn_, [](const rank_view&) { return 0.0; });
  const auto wanted = static_cast<std::uint64_t>(*request.bootstrap_room) % request.dp_size;
  const auto found =
      std::find_if(ranks.begin(), ranks.end(), [&](const rank_view& rank) { return rank.rank == wanted; });
  if (found == ranks.end())
    return std::nullopt;
  return choice{found->rank, 0.0};
}

std::string_view upstream_budget::name() const noexcept {
  switch (rule_) {
  case rule::total_requests:
    return "total_requests";
  case rule::total_tokens:
    return "total_tokens";
  case rule::total_tokens_uncharged:
    return "total_tokens_uncharged";
  }
  return "unknown";
}

std::optional<choice> upstream_budget::choose(std::span<const rank_view> ranks, const placement_request&) {
  const rank_view* best = nullptr;
  const auto key = [&](const rank_view& rank) {
    const auto& b = budgets_.find(rank.rank);
    return rule_ == rule::total_requests ? std::tuple{b.requests, std::uint64_t{0}} : std::tuple{b.tokens, b.requests};
  };
  for (const auto& rank : ranks)
    if (best == nullptr || key(rank) < key(*best))
      best = &rank;
  if (best == nullptr)
    return std::nullopt;
  return choice{best->rank, static_cast<double>(std::get<0>(key(*best)))};
}

std::optional<double> upstream_budget::score_of(const rank_view& rank, const placement_request&) const {
  const auto& b = budgets_.find(rank.rank);
  return static_cast<double>(rule_ == rule::total_requests ? b.requests : b.tokens);
}

void upstream_budget::on_placed(std::uint16_t rank, const placement_request& request) {
  if (rule_ == rule::total_tokens_uncharged)
    return;
  auto& b = budgets_[rank];
  b.requests += 1;
  if (rule_ == rule::total_tokens)
    b.tokens += request.prompt_tokens;
}

void upstream_budget::on_report(const load_report& report) {
  auto& b = budgets_[report.rank.rank];
  b.requests = std::uint64_t{report.num_running} + report.num_waiting;
  b.tokens = report.kv_used_tokens;
}

} // namespace rankwise::core
