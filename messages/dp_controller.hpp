#pragma once

#include "messages/common.hpp"
#include "messages/inspect.hpp"

#include <caf/typed_actor.hpp>

namespace rankwise {

/// RequestManager -> DPController: carried out in the order of the members.
struct pool_orders {
  std::vector<core::request_handle> releases; ///< prefill charges given back
  std::vector<core::end_order> ends;
  std::vector<core::place_order> places;
  std::vector<core::commit_order> commits;
  std::uint64_t aborts_until = 0; ///< not 0: answer with aborts_done when the ends are carried out
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, pool_orders& x) {
  return f(caf::meta::type_name("pool_orders"), x.releases, x.ends, x.places, x.commits, x.aborts_until);
}

/// LoadForwarder -> DPController: the newest reports of the ranks whose slot changed. Best effort.
struct load_update {
  std::vector<core::load_report> reports;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, load_update& x) {
  return f(caf::meta::type_name("load_update"), x.reports);
}

/// DPRank -> DPController: this rank takes work, by way of `handle`.
struct rank_up {
  core::rank_announcement rank;
  caf::strong_actor_ptr handle;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_up& x) {
  return f(caf::meta::type_name("rank_up"), x.rank, x.handle);
}

/// DPRank -> DPController: no new work (suspect), or none and the old is lost (down, parked, joining).
struct rank_not_up {
  core::rank_id rank;
  core::rank_epoch epoch = 0;
  core::rank_state state = core::rank_state::down;
  std::string cause;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_not_up& x) {
  return f(caf::meta::type_name("rank_not_up"), x.rank, x.epoch, x.state, x.cause);
}

/// Supervisor -> DPController: the actor of this rank died, its link lives on. What stood in its mailbox is lost; until
/// the next actor announces itself, aborts are kept and the rank gets work only when no other can take it.
struct rank_actor_lost {
  core::rank_id rank;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_actor_lost& x) {
  return f(caf::meta::type_name("rank_actor_lost"), x.rank);
}

/// DPRank -> DPController: the leg was not sent. `reason`: rank_queue_full, or no_rank_available when the rank went
/// down, or dialled in again, before the order reached it.
struct dispatch_failed {
  core::request_handle handle = 0;
  std::uint32_t attempt = 0;
  core::failure reason = core::failure::none;
  std::string text; ///< names the rank and what is with it
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, dispatch_failed& x) {
  return f(caf::meta::type_name("dispatch_failed"), x.handle, x.attempt, x.reason, x.text);
}

/// RequestManager -> DPController after a restart of either: everything that is placed in this pool.
struct restore_ledger {
  std::vector<core::leg_record> legs;
  std::vector<core::leg_record> ended; ///< whose abort the controller before may not have sent
  std::uint64_t aborts_until = 0;      ///< as in pool_orders
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, restore_ledger& x) {
  return f(caf::meta::type_name("restore_ledger"), x.legs, x.ended, x.aborts_until);
}

/// Answer to list_atom.
struct pool_view {
  std::uint16_t pool = 0;
  std::string name;
  std::string role;
  std::string policy;
  std::uint32_t ranks_awaited = 0;
  std::uint32_t ranks_up = 0;
  std::uint32_t dp_size = 0;
  std::uint64_t charges = 0;
  std::uint64_t waiting = 0; ///< requests that wait for room under the pool's caps
  core::controller_counts counts;
  std::vector<core::rank_row> ranks;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, pool_view& x) {
  return f(caf::meta::type_name("pool_view"), x.pool, x.name, x.role, x.policy, x.ranks_awaited, x.ranks_up, x.dp_size,
           x.charges, x.waiting, x.counts, x.ranks);
}

/// Why did the legs of this request go where they went?
struct placement_query {
  std::string rid; ///< the client's
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, placement_query& x) {
  return f(caf::meta::type_name("placement_query"), x.rid);
}

/// Oldest first.
struct placement_list {
  std::vector<core::placement_record> records;
  std::vector<std::string> silent; ///< pools whose controller did not answer: it may know of more
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, placement_list& x) {
  return f(caf::meta::type_name("placement_list"), x.records, x.silent);
}

/// admin -> Supervisor -> DPController: another rule from now on, also after restarts of the controller.
struct policy_change {
  std::uint16_t pool = 0;
  std::string policy;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, policy_change& x) {
  return f(caf::meta::type_name("policy_change"), x.pool, x.policy);
}

struct policy_change_result {
  bool done = false; ///< false: there is no such policy
  std::string before;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, policy_change_result& x) {
  return f(caf::meta::type_name("policy_change_result"), x.done, x.before);
}

/// The DP CONTROLLER of one pool: owns the ledger and the policy. Selecting a rank and charging it are one step.
using dp_controller_actor = caf::typed_actor<
    // Releases, ends, placements and commits from RequestManager, in order.
    caf::reacts_to<pool_orders>,
    // First tokens and ends of one engine batch, from RequestManager.
    caf::reacts_to<core::batch_progress>,
    // Newest load reports, from LoadForwarder.
    caf::reacts_to<load_update>,
    // Ranks come and go.
    caf::reacts_to<rank_up>, caf::reacts_to<rank_not_up>, caf::reacts_to<rank_actor_lost>,
    caf::reacts_to<dispatch_failed>,
    // What is placed, after a restart.
    caf::reacts_to<restore_ledger>,
    // RequestManager was (re)started: every charge of its predecessor is ended.
    caf::reacts_to<peer_changed>,
    // Ranks and counts.
    caf::replies_to<list_atom>::with<pool_view>,
    // An operator asks why, or wants another rule.
    caf::replies_to<placement_query>::with<placement_list>, caf::replies_to<policy_change>::with<policy_change_result>,
    // Internal: tells the ranks what is outstanding on them.
    caf::reacts_to<tick_atom>,
    // Fault injection.
    caf::reacts_to<crash_atom>,
    // Conforms to STATUS.
    caf::replies_to<status_atom>::with<actor_status>>;

} // namespace rankwise
