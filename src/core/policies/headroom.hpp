#pragma once

#include "core/policy.hpp"

namespace rankwise::core {

/// The default. Takes the rank on which the request leaves the most room: the share of the KV capacity that is taken
/// once the request is there, with tokens still to be prefilled counted again (they delay everyone behind them), plus a
/// smaller term for the number of requests. A rank whose KV cannot hold the request is taken only when none can. Equal
/// ranks take turns.
class headroom final : public policy {
 public:
  explicit headroom(const policy_options& options) : options_(options) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "headroom"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;

  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request& request) const override {
    return score(rank, request);
  }

  /// Lower is better. Public so that a decision can be explained and tested.
  [[nodiscard]] double score(const rank_view& rank, const placement_request& request) const noexcept;

 private:
  policy_options options_;
  std::uint32_t turn_ = 0; // rank number at which the search for a minimum begins
};

} // namespace rankwise::core
