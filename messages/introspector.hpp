#pragma once

#include "messages/common.hpp"
#include "messages/dp_controller.hpp"
#include "messages/request_manager.hpp"

#include <caf/typed_actor.hpp>

namespace rankwise {

/// Everything that an operator may want to see at once. Parts that did not answer within 500 ms are missing and named.
struct node_snapshot {
  std::vector<actor_status> actors; ///< Supervisor first, then its children
  std::vector<pool_view> pools;
  core::request_counts requests;
  bool requests_known = false;
  std::uint64_t open_streams = 0;
  bool degraded = false;
  std::string degraded_reason;
  std::vector<std::string> silent; ///< "dp_controller unified"
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, node_snapshot& x) {
  return f(caf::meta::type_name("node_snapshot"), x.actors, x.pools, x.requests, x.requests_known, x.open_streams,
           x.degraded, x.degraded_reason, x.silent);
}

/// The INTROSPECTOR: asks the others and puts their answers together; waits for nobody longer than 500 ms. Once a
/// second it asks by itself and adds what each rank holds to the node's load_history.
using introspector_actor = caf::typed_actor<
    // The whole node.
    caf::replies_to<snapshot_atom>::with<node_snapshot>,
    // At most so many open requests.
    caf::replies_to<list_atom, std::uint64_t>::with<request_list>,
    // Why a request went where it went, from the controllers of all pools; those that are silent are named.
    caf::replies_to<placement_query>::with<placement_list>,
    // The next second of the load history.
    caf::reacts_to<tick_atom>,
    // Fault injection.
    caf::reacts_to<crash_atom>,
    // Conforms to STATUS.
    caf::replies_to<status_atom>::with<actor_status>>;

} // namespace rankwise
