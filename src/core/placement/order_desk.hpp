#pragma once

#include "core/placement/pool_controller.hpp"
#include "core/placement/unrestored_legs.hpp"
#include "core/placement/waiting_room.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace rankwise::core {

struct order_desk_options {
  pool_options pool;
  decision_recorders recorders; ///< outlive the desk
  /// After a restart of the controller: how many ranks, and how many owners, are expected to introduce themselves.
  /// Until all have, or settle() is called, orders are kept and nothing is placed. Both 0: the desk is open at once.
  std::size_t ranks_expected = 0;
  std::size_t owners_expected = 0;
  /// How long it took to choose and charge a rank, or to refuse, by `decision_clock`. Optional; neither may throw.
  std::function<void(duration)> on_decision;
  std::function<timestamp()> decision_clock;
};

/// What has to be said to others after a call to the desk. Cleared by the caller, so that its buffers are reused.
struct desk_effects {
  std::vector<placement> placed; ///< each to the owner of its handle
  std::vector<refusal> refused;  ///< the same
  struct ejection {
    std::uint16_t rank = 0;
    rank_epoch epoch = 0;
    bool over = false;    ///< false: the rank is ejected now; true: it gets work again
    bool renewed = false; ///< of one that is over: a new epoch ended it, not its time
  };
  std::vector<ejection> ejections; ///< for the log and the operator

  void clear() {
    placed.clear();
    refused.clear();
    ejections.clear();
  }
};

/// What a rank is told about its own work now and then: by it the rank judges a silence, and its drain.
struct rank_work {
  std::uint16_t rank = 0;
  std::uint32_t requests = 0;
  std::uint64_t prefill_tokens = 0;   ///< of prompts to do
  std::uint64_t prefilled_tokens = 0; ///< of prompts done since the rank opened
  bool draining = false;              ///< the rank gets no more work: `requests` can only fall
};

/// The thinking of one pool's DPController: orders come in from their owners, get a rank, wait for one in the waiting
/// room, or are refused. It knows who owns what, restores the ledger after a restart, and ends what belonged to an
/// owner that is gone. It sends nothing: every answer is an effect.
class order_desk {
 public:
  explicit order_desk(order_desk_options options);

  /// An owner introduces itself. `index`: which of the node's RequestManagers; what an earlier owner of that index had
  /// placed or let wait is ended.
  void owner_opened(std::size_t index, owner_id owner, timestamp now, desk_effects& fx);
  /// Releases, ends and places of one owner, in this order.
  void take(pool_orders orders, timestamp now, desk_effects& fx);
  /// First tokens and ends of an engine batch.
  void take(const batch_progress& progress, timestamp now, desk_effects& fx);
  void take(const std::vector<load_report>& reports, timestamp now, desk_effects& fx);
  /// What an owner had placed before this controller was started; merged when the desk is open already.
  void restore(owner_legs legs, timestamp now, desk_effects& fx);

  void rank_up(const rank_announcement& rank, timestamp now, desk_effects& fx);
  /// Suspect and draining ranks keep what they have; of ranks that are down, parked, drained or removed the charges are
  /// dropped. Their owners hear of it from the rank itself.
  void rank_not_up(rank_id rank, rank_epoch epoch, rank_state state, timestamp now, desk_effects& fx);
  /// The actor of a rank died, its link lives: the rank gets work only when no other can take it, until it announces
  /// itself again.
  void rank_actor_lost(rank_id rank);

  /// Opens the desk although not all have introduced themselves: the time to wait for them is over.
  void settle(timestamp now, desk_effects& fx);
  /// Gives up the places of those who have waited too long, admits others, ends ejections.
  void tick(timestamp now, desk_effects& fx);

  bool set_policy(const std::string& name, timestamp now) { return pool_.set_policy(name, now); }

  /// Ranks that ought to be told about their work now: those with work, and those that were not told that they have
  /// none.
  [[nodiscard]] std::vector<rank_work> work_to_tell(timestamp now);
  [[nodiscard]] rank_work work_of(std::uint16_t rank, timestamp now) const;

  [[nodiscard]] bool is_settling() const noexcept { return settling_; }
  [[nodiscard]] std::size_t waiting() const noexcept { return waiting_.size(); }
  [[nodiscard]] const pool_controller& pool() const noexcept { return pool_; }
  /// Legs that owners have placed on ranks that have not announced themselves since this desk was made.
  [[nodiscard]] const unrestored_legs& unrestored() const noexcept { return unrestored_; }

 private:
  void settle_when_all_are_here(timestamp now, desk_effects& fx);
  void carry_out(pool_orders orders, timestamp now, desk_effects& fx);
  void progress(const batch_progress& p, timestamp now, desk_effects& fx);
  void restore_legs(const std::vector<leg_record>& legs, timestamp now);
  void owner_gone(owner_id owner, timestamp now);
  void place_or_wait(place_order order, timestamp now, desk_effects& fx);
  void find_place_for_newcomer(place_order order, const waiting_key& key, timestamp now, desk_effects& fx);
  bool place(const place_order& order, bool may_wait, timestamp now, desk_effects& fx);
  void admit_waiting(timestamp now, desk_effects& fx);
  [[nodiscard]] bool may_wait_for_rank(const place_order& order) const noexcept;

  order_desk_options options_;
  pool_controller pool_;
  waiting_room waiting_;
  std::map<std::size_t, owner_id> owners_; // by index
  unrestored_legs unrestored_;
  std::vector<bool> told_idle_; // by rank: the last work_to_tell() said 0

  // Until all are here: what has to wait. Bounded by what the owners let in flight.
  bool settling_ = false;
  std::vector<owner_legs> legs_kept_; // of each owner that has spoken
  std::vector<batch_progress> progress_kept_;
  std::vector<pool_orders> orders_kept_;
};

} // namespace rankwise::core
