#pragma once

#include "messages/common.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "messages/inspect.hpp"

#include <caf/typed_actor.hpp>

namespace rankwise {

/// Internal: the backoff of a child is over.
struct restart_child {
  std::string role;
  core::rank_id rank; ///< the pool of a dp_controller; pool and rank of a dp_rank
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, restart_child& x) {
  return f(caf::meta::type_name("restart_child"), x.role, x.rank);
}

/// Fault injection: make a child throw.
struct crash_child {
  std::string role;
  core::rank_id rank;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, crash_child& x) {
  return f(caf::meta::type_name("crash_child"), x.role, x.rank);
}

/// One child, as the Supervisor knows it. `handle` is null while it is being restarted or parked.
struct child_row {
  actor_status status;
  caf::strong_actor_ptr handle;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, child_row& x) {
  return f(caf::meta::type_name("child_row"), x.status, x.handle);
}

/// Answer to list_atom.
struct child_list {
  std::vector<child_row> children;
  bool degraded = false; ///< some child is parked
  std::string degraded_reason;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, child_list& x) {
  return f(caf::meta::type_name("child_list"), x.children, x.degraded, x.degraded_reason);
}

/// The SUPERVISOR: owns every other actor. One for one: a child that dies is started again after a backoff; one that
/// dies too often is parked (a rank, the LoadForwarder, the Introspector) or takes the process with it (RequestManager,
/// a DPController).
using supervisor_actor = caf::typed_actor<
    // A rank's link changed: a HELLO spawns or renews its DPRank.
    caf::reacts_to<link_event>,
    // An operator's wish for one rank.
    caf::replies_to<rank_command>::with<rank_command_result>,
    // Another rule for one pool.
    caf::replies_to<policy_change>::with<policy_change_result>,
    // Internal: a backoff, or a parked child's time, is over.
    caf::reacts_to<restart_child>,
    // Fault injection, by role and rank.
    caf::reacts_to<crash_child>,
    // Every child with its restarts.
    caf::replies_to<list_atom>::with<child_list>,
    // Conforms to STATUS.
    caf::replies_to<status_atom>::with<actor_status>>;

} // namespace rankwise
