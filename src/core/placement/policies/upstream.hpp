#pragma once

#include "core/placement/policies/by_rank.hpp"
#include "core/placement/policy.hpp"

/// The rules of SGLang's own controller, re-created for comparison with the load view that they have there: a report
/// overwrites what was charged, and the lowest rank wins ties.
namespace rankwise::core {

/// A counter over the ranks that can take work.
class round_robin final : public policy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "round_robin"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;

 private:
  std::uint32_t turn_ = 0;
};

/// bootstrap_room modulo the pool's ranks. Refuses when that rank cannot take work: the partner leg will look for it
/// there. A request without a room is placed by turns.
class follow_bootstrap_room final : public policy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "follow_bootstrap_room"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;

 private:
  std::uint32_t turn_ = 0;
};

/// total_requests, total_tokens, and total_tokens as it was before prompt tokens were charged at placement (the release
/// in which every request went to rank 0 when no report arrived).
class upstream_budget final : public policy {
 public:
  enum class rule { total_requests, total_tokens, total_tokens_uncharged };

  explicit upstream_budget(rule r) : rule_(r) {}

  [[nodiscard]] std::string_view name() const noexcept override;
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;
  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request& request) const override;
  void on_placed(std::uint16_t rank, const placement_request& request) override;
  void on_rank_opened(std::uint16_t rank) override { budgets_[rank] = {}; }
  void on_report(const load_report& report) override;

 private:
  struct budget {
    std::uint64_t requests = 0;
    std::uint64_t tokens = 0;
  };

  rule rule_;
  by_rank<budget> budgets_;
};

} // namespace rankwise::core
