#pragma once

#include "core/placement/policy.hpp"

#include <memory>
#include <utility>

namespace rankwise::core {

/// Shows another rule changed ranks, and passes on what it is told: what is left to write is `choose`.
class policy_around : public policy {
 public:
  explicit policy_around(std::unique_ptr<policy> rule) : rule_(std::move(rule)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return rule_->name(); }
  [[nodiscard]] bool uses_blocks() const noexcept override { return rule_->uses_blocks(); }
  [[nodiscard]] std::optional<waiting_estimate> waiting_order(const placement_request& request) const override {
    return rule_->waiting_order(request);
  }
  void on_placed(std::uint16_t rank, const placement_request& request) override { rule_->on_placed(rank, request); }
  void on_first_token(const leg_progress& leg) override { rule_->on_first_token(leg); }
  void on_ended(const leg_progress& leg) override { rule_->on_ended(leg); }
  void on_step(const step_observation& step) override { rule_->on_step(step); }
  void on_rank_opened(std::uint16_t rank) override { rule_->on_rank_opened(rank); }
  void on_rank_closed(std::uint16_t rank) override { rule_->on_rank_closed(rank); }
  void on_report(const load_report& report) override { rule_->on_report(report); }

 protected:
  std::unique_ptr<policy> rule_;
  std::vector<rank_view> views_; ///< for the ranks as the rule is to see them; its memory is reused
};

} // namespace rankwise::core
