#pragma once

#include "core/policies/headroom.hpp"

#include <random>

namespace rankwise::core {

/// Two ranks at random, the better of them by headroom's score. For comparison, and for very many ranks.
class power_of_two final : public policy {
 public:
  explicit power_of_two(const policy_options& options) : scorer_(options), random_(options.seed) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "power_of_two"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;

 private:
  headroom scorer_;
  std::mt19937_64 random_;
};

} // namespace rankwise::core
