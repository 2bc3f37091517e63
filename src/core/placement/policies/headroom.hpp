#pragma once

#include "core/placement/policies/by_rank.hpp"
#include "core/placement/policies/output_lengths.hpp"
#include "core/placement/policies/prefix_map.hpp"
#include "core/placement/policies/step_observer.hpp"
#include "core/placement/policies/step_pace.hpp"
#include "core/placement/policy.hpp"

#include <deque>
#include <vector>

namespace rankwise::core {

/// The default: the rank on which the request delays everyone least. docs/placement.md has the formula, what each part
/// gains, and what it does not do.
///
/// Score, in seconds: the predicted time to the first token there, plus a weight times the predicted delay of the
/// streams that are there already (in lockstep, of all). Predicted from what is on the rank by the ledger, from the
/// part of its prompts that its steps since can have computed, and from the time that steps are seen to take.
class headroom final : public policy {
 public:
  explicit headroom(const policy_options& options);

  [[nodiscard]] std::string_view name() const noexcept override { return "headroom"; }
  [[nodiscard]] bool uses_blocks() const noexcept override { return options_.headroom_prefix; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks,
                                             const placement_request& request) override;
  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request& request) const override;
  [[nodiscard]] std::span<const double> last_scores() const noexcept override { return scores_; }
  [[nodiscard]] std::size_t ranks_enough() const noexcept override { return options_.headroom_ranks_enough; }
  [[nodiscard]] std::span<const std::uint16_t> preferred(const placement_request& request) const override;
  [[nodiscard]] std::optional<waiting_estimate> waiting_order(const placement_request& request) const override;

  void on_placed(std::uint16_t rank, const placement_request& request) override;
  void on_first_token(const leg_progress& leg) override;
  void on_ended(const leg_progress& leg) override;
  void on_step(const step_observation& step) override;
  void on_rank_opened(std::uint16_t rank) override { forget_rank(rank); }
  void on_rank_closed(std::uint16_t rank) override { forget_rank(rank); }

  [[nodiscard]] const step_pace::coefficients& pace() const noexcept { return pace_.get(); }
  /// What was learned of a rank alone says nothing while others share it.
  [[nodiscard]] double slow_factor(std::uint16_t rank) const { return shared_ ? 1 : lanes_.find(rank).slow; }

 private:
  struct pending_prompt {
    request_handle handle;
    double work;
    double cached;                     // tokens that the rank was likely to have
    std::vector<std::uint64_t> blocks; // it has them from the first token on
  };
  struct lane {
    std::deque<pending_prompt> prompts; // placed and without a first token, in order
    std::uint64_t steps_at_head = 0;    // of the rank (in lockstep, of the pool) when the first of them began
    std::uint64_t steps = 0;
    step_observer observer; // of a rank that steps by itself
    timestamp last_step{};
    bool stepped = false;            // last_step is one
    double decoding_after_step = 0;  // streams
    std::uint64_t report_judged = 0; // sequence of the last
    double requests_at_report = 0;   // ours
    bool foreign_reported = false;   // by it
    double last_gap_s = 0;
    double log_slow = 0; // of how many times as long its steps take, against the pace that is learned from all
    std::optional<double> slowness_counted; // in log_slow_sum_
    double slow = 1;                        // against the other ranks; 1 while what was observed is within the noise
  };
  void observe_slowness(lane& l, double ratio);
  void uncount_slowness(const lane& l);
  void forget_slowness(); // of all
  void look_for_others(lane& l, const step_observation& step);
  /// What all ranks have in common in one decision.
  struct pool_figures {
    double decoding = 0;         // streams
    double longest_backlog = 0;  // tokens
    double longest_decode_s = 0; // step without prompts
  };
  struct estimate {
    double first_token_s = 0; // predicted time to the first token
    double backlog_tokens = 0;
    double damage_s = 0;
    double work_s = 0; // of computing its prompt there
    double decode_s = 0;
    bool fits = true;    // with room for what those on it are expected to generate
    double overfull = 0; // KV share by which the prompt itself does not fit
  };
  [[nodiscard]] estimate look(const rank_view& rank, const placement_request& request, const pool_figures& pool,
                              double work, double output) const;
  [[nodiscard]] pool_figures look_at_pool(std::span<const rank_view> ranks, const placement_request& request) const;
  /// Requests of others on a rank, e.g. of another front end: what its report counts beyond our own.
  [[nodiscard]] double foreign_requests(const rank_view& rank) const noexcept;
  [[nodiscard]] double foreign_waiting(const rank_view& rank) const noexcept;
  [[nodiscard]] double decoding_on(const rank_view& rank, const placement_request& request) const noexcept;
  [[nodiscard]] double decode_step_s(const rank_view& rank, const placement_request& request) const;
  [[nodiscard]] double work_of(const placement_request& request, std::uint16_t rank,
                               std::span<const prefix_map::match> matches) const;
  [[nodiscard]] double foreign_backlog(const rank_view& rank, const placement_request& request) const;
  [[nodiscard]] double backlog(const rank_view& rank, const placement_request& request) const;
  [[nodiscard]] double score(const estimate& e, const rank_view& rank) const;
  [[nodiscard]] step_observer& observer_of(std::uint16_t rank) {
    return options_.lockstep ? lockstep_ : lanes_[rank].observer;
  }
  [[nodiscard]] std::uint16_t place_of(std::uint16_t rank) const noexcept { return options_.lockstep ? rank : 0; }
  [[nodiscard]] std::uint64_t steps_of(const lane& l) const noexcept {
    return options_.lockstep ? lockstep_.steps() : l.steps;
  }
  [[nodiscard]] std::span<const prefix_map::match> matches_of(const placement_request& request) const;
  [[nodiscard]] double cached_on(const placement_request& request, std::uint16_t rank,
                                 std::span<const prefix_map::match> matches) const;
  void forget_rank(std::uint16_t rank);
  void forget_prompt(const leg_progress& leg, bool prefilled);
  void learn(const std::optional<step_seen>& seen, lane& l);

  policy_options options_;
  step_pace pace_;
  step_pace pace_kept_; // of pace_kept_at_, and the one before
  step_pace pace_before_;
  timestamp pace_kept_at_{};
  output_lengths lengths_;
  prefix_map prefixes_;
  // Of the tokens that the map says are cached, the share that engines said they had. A map that is wrong (no prefix
  // cache, a small one, a cache flushed by hand) must not draw everything to one rank.
  double prefix_trust_ = 0;
  by_rank<lane> lanes_;
  std::vector<double> scores_;
  mutable std::vector<std::uint16_t> preferred_;
  double log_slow_sum_ = 0;   // of the ranks whose slowness was observed
  double slow_counted_ = 0;   // these ranks
  double mean_prompt_ = 1024; // tokens, of lately
  double mean_step_s_ = 0;    // between outputs of a rank with streams, of lately; 0 = none was seen
  pool_figures pool_;         // of the last decision, for whoever asks why
  double ours_share_ = 1;     // of the requests that reports count, of lately
  bool shared_ = false;       // reports count requests of others
  timestamp shared_until_{};
  step_observer lockstep_; // of all ranks, where they step together
  std::uint32_t turn_ = 0; // rank number at which the search for a minimum begins
};

/// The rank with the fewest KV tokens, alone; for comparison.
class least_kv final : public policy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "least_kv"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request&) const override;

 private:
  std::uint32_t turn_ = 0;
};

} // namespace rankwise::core
