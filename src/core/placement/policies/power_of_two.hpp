#pragma once

#include "core/placement/policies/headroom.hpp"

#include <random>

namespace rankwise::core {

/// Two ranks at random, the better of them by headroom's score. For comparison, and for very many ranks.
class power_of_two final : public policy {
 public:
  explicit power_of_two(const policy_options& options) : scorer_(options), random_(options.seed) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "power_of_two"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;

  void on_placed(std::uint16_t rank, const placement_request& request) override { scorer_.on_placed(rank, request); }
  void on_first_token(const leg_progress& leg) override { scorer_.on_first_token(leg); }
  void on_ended(const leg_progress& leg) override { scorer_.on_ended(leg); }
  void on_step(const step_observation& step) override { scorer_.on_step(step); }
  void on_rank_opened(std::uint16_t rank) override { scorer_.on_rank_opened(rank); }
  void on_rank_closed(std::uint16_t rank) override { scorer_.on_rank_closed(rank); }

 private:
  headroom scorer_;
  std::mt19937_64 random_;
};

} // namespace rankwise::core
