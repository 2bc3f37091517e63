#pragma once

#include "core/load/ledger.hpp"
#include "core/load/rank_row.hpp"
#include "core/placement/decision_recorder.hpp"
#include "core/placement/orders.hpp"
#include "core/placement/placement_record.hpp"
#include "core/placement/policy.hpp"
#include "core/placement/rank_health.hpp"
#include "core/placement/waiting_room.hpp"
#include "core/rank/rank_machine.hpp"

#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

namespace rankwise::core {

struct pool_options {
  std::string name = "unified";
  std::uint16_t index = 0;
  pool_role role = pool_role::unified;
  std::uint16_t ranks_max = 64;
  std::uint16_t ranks_awaited = 1;
  std::uint32_t requests_in_flight_max = 8192;
  std::uint64_t tokens_in_flight_max = 1ull << 32; ///< prompts plus the most that may be generated
  std::uint32_t waiting_requests_max =
      1024; ///< that may wait, for room under the two caps above or for a rank; 0 = none
  duration waiting_time_max = std::chrono::seconds{10};
  waiting_order_options waiting_order;     ///< of requests that the policy lets wait for a rank
  std::uint32_t prefix_block_tokens = 256; ///< of a block by which equal beginnings are told; 0 = they are not
  bool pin_is_hint = false;
  std::string policy = "headroom";
  policy_options tuning;
  ledger_options ledger;
  health_options health;
  duration slow_start = std::chrono::seconds{2};
  std::string bootstrap_host = "127.0.0.1"; ///< prefill pools: where the engines hand KV over
  std::int32_t bootstrap_port = 8998;
  controller_term term = 1; ///< which start of the controller this is; every placement carries it
};

/// The policy would rather decide later.
struct wait_for_rank {};

/// Counts since the controller was started.
struct controller_counts {
  std::uint64_t placed = 0;
  std::array<std::uint64_t, placement_rule_count> placed_by{}; ///< their sum is `placed`
  std::uint64_t refused = 0;
  std::uint64_t charges_ended = 0;
  std::uint64_t ends_of_unknown_charges = 0;
  std::array<std::uint64_t, report_verdict_count> reports{};
};

/// The thinking of one pool's DPController: admission, policy and ledger. Select and charge are one step.
class pool_controller {
 public:
  /// `rule` stands in for the policy that the options name; for the simulator and tests. The recorders outlive this.
  explicit pool_controller(pool_options options, std::unique_ptr<policy> rule = nullptr,
                           decision_recorders recorders = {});

  [[nodiscard]] const pool_options& options() const noexcept { return options_; }
  [[nodiscard]] const controller_counts& counts() const noexcept { return counts_; }

  /// Another rule from now on; it learns what is charged. False: no policy has that name.
  bool set_policy(const std::string& name, timestamp now);
  /// Why the legs of this request went where they went, oldest first; empty when it is not among the newest records.
  [[nodiscard]] std::vector<placement_record> explain(const std::string& rid) const;

  /// Whether the pool has room for the order under both of its caps; without room place() refuses it.
  [[nodiscard]] bool has_room(const place_order& order) const;
  /// Chooses a rank for the order and charges it, or says why not. `wait_for_rank`: nothing was charged, a rank that
  /// suits it better is expected soon, ask again when something changed; only where `may_wait`.
  [[nodiscard]] std::variant<placement, refusal, wait_for_rank> place(const place_order& order, timestamp now,
                                                                      bool may_wait);
  /// The same for an order that may not wait.
  [[nodiscard]] std::variant<placement, refusal> place(const place_order& order, timestamp now);
  /// By what an order that cannot be placed now is put in line with the others that wait.
  [[nodiscard]] waiting_key waiting_order(const place_order& order, timestamp now);
  /// The leg wants no rank any more unless it is ordered again: its order was taken back while it waited, or its rank
  /// is gone. For recorders.
  void left(request_handle handle, timestamp now) const;
  /// Refuses an order that lost its place to wait to one of a higher class.
  [[nodiscard]] refusal displaced(const place_order& order, timestamp now);
  /// Refuses an order that finds no place to wait, while the next of those who wait has no room in the pool either.
  [[nodiscard]] refusal crowded_out(const place_order& order, timestamp now);

  /// place() for a leg that is described without an order: when decisions are made again from a log.
  [[nodiscard]] std::variant<placement, refusal, wait_for_rank> place(const leg_request& leg);
  /// waiting_order() for the same.
  [[nodiscard]] waiting_key waiting_order(placement_request request) const;

  /// A rank that takes work under `epoch`. Returns the handles that were charged to an earlier epoch of it.
  std::vector<request_handle> rank_up(const rank_announcement& rank, timestamp now);
  /// Suspect or draining: no new work, charges kept.
  void rank_paused(rank_id rank, rank_epoch epoch, rank_state state);
  /// Down, parked, drained or removed: its charges are dropped; their handles are returned. Nothing for an older epoch.
  std::vector<request_handle> rank_down(rank_id rank, rank_epoch epoch, rank_state state = rank_state::down);

  /// True: with this the rank's errors eject it.
  bool progress(const batch_progress& p, timestamp now);
  struct ejection_end {
    std::uint16_t rank = 0;
    rank_epoch epoch = 0;
    bool renewed = false; ///< a new epoch ended it, not its time
  };
  /// The ranks that get work again since the last call: their ejection is over, and they are up.
  [[nodiscard]] std::vector<ejection_end> ejections_over(timestamp now);
  /// Gives a prefill charge back while its leg goes on. False: the leg is not charged, or was released before.
  bool release(request_handle handle, timestamp now);
  /// Ends the charge of a leg, as its owner says. nullopt: that attempt is not charged here (its rank was lost, or it
  /// was never placed), and nothing changes.
  std::optional<ledger::charge> end(const end_order& order, timestamp now);
  /// Ends the charge of whatever attempt of a leg is charged. `generated`: tokens that it generated, where known.
  std::optional<ledger::charge> end(request_handle handle, timestamp now, std::uint32_t generated = 0);
  /// An owner is gone: ends the charges of all of its legs, whose handles are returned.
  std::vector<request_handle> owner_gone(owner_id owner, timestamp now);
  report_verdict report(const load_report& r);

  /// After a restart: takes over what an owner knows to be placed. Returns the handles whose rank is gone meanwhile.
  std::vector<request_handle> restore(const std::vector<leg_record>& legs, timestamp now);

  /// Ranks of the pool by which its engines reduce rooms: what the ranks registered, at least those that joined.
  [[nodiscard]] std::uint32_t dp_size() const noexcept { return dp_size_; }
  [[nodiscard]] std::size_t ranks_up() const noexcept;
  /// Epoch under which a rank announced itself last; 0 when it is not known.
  [[nodiscard]] rank_epoch epoch_of(std::uint16_t rank) const noexcept {
    return rank < ranks_.size() && ranks_[rank].known ? ranks_[rank].announced.epoch : 0;
  }
  /// Of a rank number; down when it is not known.
  [[nodiscard]] rank_state state_of(std::uint16_t rank) const noexcept {
    return rank < ranks_.size() && ranks_[rank].known ? ranks_[rank].state : rank_state::down;
  }
  [[nodiscard]] std::vector<rank_row> rows(timestamp now) const;
  [[nodiscard]] ledger::figures figures(std::uint16_t rank, timestamp now) const { return ledger_.of(rank, now); }
  [[nodiscard]] bool is_prefilled(request_handle handle) const;
  /// The attempt under which a leg is charged; nullopt: it is not.
  [[nodiscard]] std::optional<std::uint32_t> charged_attempt(request_handle handle) const;
  [[nodiscard]] std::size_t charge_count() const noexcept { return ledger_.charge_count(); }
  [[nodiscard]] std::vector<leg_id> charged_legs() const { return ledger_.charged_legs(); }

 private:
  struct entry {
    bool known = false;
    rank_announcement announced;
    rank_state state = rank_state::down;
    timestamp ready_since{};
    bool first_epoch = true;
    std::uint64_t placements = 0;
    rank_health health;
    std::uint32_t drain_cut = 0;
    std::optional<rank_epoch> ejected_in; // until its end was told
    std::uint64_t newest_batch = 0;       // of the engine batches whose progress was told
  };

  /// Refers to the order.
  [[nodiscard]] leg_request leg_of(const place_order& order, timestamp now, bool may_wait) const;
  [[nodiscard]] double share_of(const entry& e, timestamp now) const;

  template <class F>
  void tell(F&& f) const {
    for (auto* recorder : recorders_)
      f(*recorder);
  }
  std::variant<placement, refusal, wait_for_rank> decide(const leg_request& leg, std::optional<double>& score);
  std::optional<ledger::charge> end_charge(request_handle handle, timestamp now, std::uint32_t generated,
                                           bool by_engine);
  placement_record& open_record(const leg_request& leg);
  void record_candidates(placement_record& record, const placement_request& wanted, std::uint16_t chosen) const;
  /// By which cap the pool has no room for a request that may take so many tokens.
  [[nodiscard]] std::optional<failure> cap_reached(std::uint64_t limit_tokens) const;
  [[nodiscard]] refusal refuse(const leg_request& leg, failure reason, std::string text);
  [[nodiscard]] refusal no_place_to_wait(const place_order& order, timestamp now, const std::string& why);
  void collect_views(const placement_request& wanted, rank_state state);
  void add_view(std::uint16_t rank, timestamp now);
  void look_at_states();
  void tell_policy(request_handle handle, timestamp now);

  pool_options options_;
  decision_recorders recorders_;
  ledger ledger_;
  std::unique_ptr<policy> policy_;
  std::string policy_rule_;            // what a record says of a choice by it
  std::vector<entry> ranks_;           // by rank number, ranks_max entries
  std::vector<std::uint16_t> offered_; // drawn from a large pool
  // Of the ranks' states, made anew when one changes.
  std::uint32_t dp_size_ = 1;
  std::vector<std::uint16_t> ready_;
  std::vector<std::uint16_t> suspect_;
  timestamp ejected_until_{};    // the last ejection's end: nobody is ejected from then on
  std::mt19937_64 random_;       // which ranks of a large pool a policy is offered
  std::vector<rank_view> views_; // reused, so that a decision allocates nothing
  controller_counts counts_;
  std::vector<placement_record> records_; // a ring of placement_records_max
  std::size_t next_record_ = 0;
};

} // namespace rankwise::core
