#pragma once

#include "core/placement/policies/policy_around.hpp"
#include "sim/pool/simulated_pool.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace rankwise::sim {

/// Gives a policy the true state of every rank instead of what a controller knows: what the rule would do if nothing
/// had to be learned, and no report were late. The pool must outlive it.
class oracle final : public core::policy_around {
 public:
  oracle(std::unique_ptr<core::policy> rule, const simulated_pool& pool)
      : policy_around(std::move(rule)), pool_(pool) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "oracle"; }
  [[nodiscard]] std::optional<core::choice> choose(std::span<const core::rank_view> ranks,
                                                   const core::placement_request& request) override;

 private:
  const simulated_pool& pool_;
};

} // namespace rankwise::sim
