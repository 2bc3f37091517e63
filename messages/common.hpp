#pragma once

#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/placement/orders.hpp"
#include "core/request/request.hpp"

#include <caf/actor_control_block.hpp>
#include <caf/atom.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// Words and values that several actors share.
namespace rankwise {

/// STATUS: every actor answers it with an actor_status.
using status_atom = caf::atom_constant<caf::atom("status")>;
/// A periodic message of an actor to itself.
using tick_atom = caf::atom_constant<caf::atom("tick")>;
/// "Something on the load board changed."
using wake_atom = caf::atom_constant<caf::atom("wake")>;
/// Fault injection: throw from inside the handler. Sent by `rankwise demo --fault` and by tests, through the
/// Supervisor.
using crash_atom = caf::atom_constant<caf::atom("crash")>;
/// Questions; the answer's type is in the interface.
using counts_atom = caf::atom_constant<caf::atom("counts")>;
using list_atom = caf::atom_constant<caf::atom("list")>;
using snapshot_atom = caf::atom_constant<caf::atom("snapshot")>;
/// End everything that is still open, with failure shutting_down.
using end_all_atom = caf::atom_constant<caf::atom("endall")>;

/// What an actor says of itself.
struct actor_status {
  std::string role;                ///< "dp_rank"
  std::string name;                ///< "decode/3"; empty for roles of which a node has one
  std::string state;               ///< of the actor's own state machine, or "running"
  std::string detail;              ///< for people: what it has learned or lacks; empty for most
  std::uint64_t mailbox_depth = 0; ///< messages waiting when this one was handled
  std::uint64_t handled = 0;       ///< messages since this incarnation started
  std::uint64_t longest_handler_ns = 0;
  std::uint64_t slow_handlers = 0; ///< of `handled`: those that took longer than 0.5 ms
  std::uint32_t restarts = 0;      ///< filled in by the Supervisor
  std::string last_error;          ///< of the incarnation before; filled in by the Supervisor
  bool parked = false;             ///< crashed too often, waits; filled in by the Supervisor
  bool answered = true;            ///< false: no answer within 500 ms; figures are the Supervisor's
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, actor_status& x) {
  return f(caf::meta::type_name("actor_status"), x.role, x.name, x.state, x.detail, x.mailbox_depth, x.handled,
           x.longest_handler_ns, x.slow_handlers, x.restarts, x.last_error, x.parked, x.answered);
}

/// "The actor of that role is now this one." Sent by the Supervisor after a (re)start to those who talk to it.
struct peer_changed {
  std::string role;         ///< "request_manager", "dp_controller"
  std::uint16_t pool = 0;   ///< of a dp_controller
  std::uint16_t index = 0;  ///< of a request_manager: which of the node's
  core::owner_id owner = 0; ///< of a request_manager: what its requests carry; its predecessor's are void
  caf::strong_actor_ptr handle;
  std::uint32_t incarnation = 0; ///< 1 at the first start; of a dp_controller its term
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, peer_changed& x) {
  return f(caf::meta::type_name("peer_changed"), x.role, x.pool, x.index, x.owner, x.handle, x.incarnation);
}

} // namespace rankwise
