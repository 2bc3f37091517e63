#pragma once

#include "messages/common.hpp"
#include "messages/inspect.hpp"

#include <caf/typed_actor.hpp>

namespace rankwise {

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

/// Supervisor -> DPController: the actor of this rank died, its link lives on. Until the next actor announces itself
/// the rank gets work only when no other can take it.
struct rank_actor_lost {
  core::rank_id rank;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_actor_lost& x) {
  return f(caf::meta::type_name("rank_actor_lost"), x.rank);
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

/// The DP CONTROLLER of one pool: decides which rank takes which request. Owns the ledger, the policy and the waiting
/// room; selecting a rank and charging it are one step. It holds no prompt and sends nothing to engines: the owner of a
/// request, its RequestManager, does.
using dp_controller_actor = caf::typed_actor<
    // Releases, ends and placements of one owner, in order; answered by placement and refusal.
    caf::reacts_to<core::pool_orders>,
    // First tokens and ends of one engine batch, from an owner.
    caf::reacts_to<core::batch_progress>,
    // Newest load reports, from LoadForwarder.
    caf::reacts_to<load_update>,
    // Ranks come and go.
    caf::reacts_to<rank_up>, caf::reacts_to<rank_not_up>, caf::reacts_to<rank_actor_lost>,
    // What an owner has placed in this pool, after a restart of the controller.
    caf::reacts_to<core::owner_legs>,
    // A RequestManager was (re)started: every charge of its predecessor is ended.
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
