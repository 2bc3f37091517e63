#include "core/placement/policies/peers.hpp"

#include "core/base/split_mix.hpp"
#include "core/placement/policies/rotation.hpp"

#include <algorithm>

namespace rankwise::core {

namespace {

/// The lowest score; by chance among equals.
template <class Score>
std::optional<choice> lowest_by_chance(std::span<const rank_view> ranks, std::mt19937_64& random, Score score) {
  std::optional<choice> best;
  std::uint64_t equals = 0;
  for (const auto& rank : ranks) {
    const double value = score(rank);
    if (best && value > best->score)
      continue;
    equals = best && value == best->score ? equals + 1 : 1;
    if (equals == 1 || random() % equals == 0)
      best = choice{rank.rank, value};
  }
  return best;
}

double kv_share_of(const load_report& report) {
  return report.kv_total_tokens == 0
             ? 0
             : static_cast<double>(report.kv_used_tokens) / static_cast<double>(report.kv_total_tokens);
}

std::uint64_t cached_tokens(std::span<const prefix_map::match> matches, std::uint16_t rank,
                            const placement_request& request) {
  return std::min<std::uint64_t>(prefix_map::blocks_on(rank, matches) * request.block_tokens, request.prompt_tokens);
}

} // namespace

// -- vLLM
// ---------------------------------------------------------------------------------------------------------------

std::optional<double> vllm::score_of(const rank_view& rank, const placement_request&) const {
  const auto& s = state_.find(rank.rank);
  if (rule_ == rule::counts)
    return 4.0 * (s.waiting + s.placed) + s.running;
  const double load = std::max<double>(rank.requests, s.waiting + s.running);
  return s.waiting == 0 ? load : load + 6.0 * s.waiting * std::max(0.0, s.kv_share - 0.5);
}

std::optional<choice> vllm::choose(std::span<const rank_view> ranks, const placement_request& request) {
  std::optional<choice> best;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& rank = ranks[(start_ + i) % ranks.size()];
    const double value = *score_of(rank, request);
    if (!best || value < best->score)
      best = choice{rank.rank, value};
  }
  if (rule_ == rule::in_flight)
    ++start_;
  return best;
}

void vllm::on_report(const load_report& report) {
  state_[report.rank.rank] = {report.num_running, report.num_waiting, kv_share_of(report), 0};
}

// -- Dynamo
// -------------------------------------------------------------------------------------------------------------

std::optional<choice> dynamo::choose(std::span<const rank_view> ranks, const placement_request& request) {
  constexpr double block = 16;
  const auto matches = prefixes_.find(request.blocks);
  const auto cached = [&](std::uint16_t rank) { return cached_tokens(matches, rank, request); };
  auto best = lowest_by_chance(ranks, random_, [&](const rank_view& rank) {
    const double prefill =
        request.needs_prefill ? static_cast<double>(rank.work_tokens + request.prompt_tokens - cached(rank.rank)) : 0;
    // Each request's KV blocks count from its placement on.
    const double decode = static_cast<double>(rank.placed_tokens + rank.generated_tokens + request.prompt_tokens);
    return (prefill + decode) / block;
  });
  if (best)
    best->cached_tokens = cached(best->rank);
  return best;
}

void dynamo::on_placed(std::uint16_t rank, const placement_request& request) {
  prefixes_.placed(rank, request.blocks);
}

// -- smg
// ----------------------------------------------------------------------------------------------------------------

std::optional<double> smg_load::score_of(const rank_view& rank, const placement_request&) const {
  constexpr double tokens_per_waiting = 1024;
  constexpr double tokens_per_s = 8000; // its mock worker's prefill speed
  const auto& s = state_.find(rank.rank);
  const double queued = tokens_per_waiting * s.waiting + static_cast<double>(s.placed_tokens);
  const double k = std::min(s.kv_share, 0.999);
  return queued / tokens_per_s + 0.15 * k / (1 - k);
}

std::optional<choice> smg_load::choose(std::span<const rank_view> ranks, const placement_request& request) {
  const auto score = [&](const rank_view& rank) { return *score_of(rank, request); };
  if (!two_ || ranks.size() < 2)
    return lowest_by_chance(ranks, random_, score);
  const auto [first, second] = two_at_random(ranks.size(), random_);
  const auto& better = score(ranks[second]) < score(ranks[first]) ? ranks[second] : ranks[first];
  return choice{better.rank, score(better)};
}

void smg_load::on_report(const load_report& report) {
  state_[report.rank.rank] = {report.num_waiting, kv_share_of(report), 0};
}

std::optional<choice> fewest_in_flight::choose(std::span<const rank_view> ranks, const placement_request&) {
  const auto best = std::min_element(ranks.begin(), ranks.end(),
                                     [](const auto& a, const auto& b) { return a.requests < b.requests; });
  if (best == ranks.end())
    return std::nullopt;
  return choice{best->rank, static_cast<double>(best->requests)};
}

// -- llm-d
// --------------------------------------------------------------------------------------------------------------

std::optional<choice> llm_d::choose(std::span<const rank_view> ranks, const placement_request& request) {
  const auto matches = prefixes_.find(request.blocks);
  std::uint32_t fewest = ~0U;
  std::uint32_t most = 0;
  for (const auto& rank : ranks) {
    const auto waiting = state_.find(rank.rank).waiting;
    fewest = std::min(fewest, waiting);
    most = std::max(most, waiting);
  }
  auto best = lowest_by_chance(ranks, random_, [&](const rank_view& rank) {
    const auto& s = state_.find(rank.rank);
    const double queue = most == fewest ? 1.0 : static_cast<double>(most - s.waiting) / (most - fewest);
    const double prefix = request.prompt_tokens == 0 ? 0
                                                     : static_cast<double>(cached_tokens(matches, rank.rank, request)) /
                                                           static_cast<double>(request.prompt_tokens);
    return -(2 * queue + 2 * (1 - s.kv_share) + 3 * prefix);
  });
  if (best)
    best->cached_tokens = cached_tokens(matches, best->rank, request);
  return best;
}

void llm_d::on_placed(std::uint16_t rank, const placement_request& request) {
  prefixes_.placed(rank, request.blocks);
}

void llm_d::on_report(const load_report& report) {
  state_[report.rank.rank] = {report.num_waiting, kv_share_of(report)};
}

// -- without load
// -------------------------------------------------------------------------------------------------------

std::optional<choice> prefix_hash::choose(std::span<const rank_view> ranks, const placement_request& request) {
  const auto key =
      request.blocks.empty() ? request.handle : request.blocks[std::min<std::size_t>(1, request.blocks.size() - 1)];
  const auto weight = [&](const rank_view& rank) { return split_mix(key + split_mix_step * rank.rank); };
  const auto best =
      std::max_element(ranks.begin(), ranks.end(), [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  if (best == ranks.end())
    return std::nullopt;
  return choice{best->rank, 0};
}

std::optional<choice> random_rank::choose(std::span<const rank_view> ranks, const placement_request&) {
  if (ranks.empty())
    return std::nullopt;
  return choice{ranks[random_() % ranks.size()].rank, 0};
}

} // namespace rankwise::core
