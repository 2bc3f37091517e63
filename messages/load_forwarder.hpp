#pragma once

#include "messages/common.hpp"
#include "messages/inspect.hpp"

#include <caf/typed_actor.hpp>

namespace rankwise {

/// The LOAD FORWARDER: moves the newest load report of each rank from the load board to the controller of its pool.
/// Best effort: it may lose an intermediate report, never the newest one, and nothing waits for it.
using load_forwarder_actor = caf::typed_actor<
    // The load board changed; forward what is new.
    caf::reacts_to<wake_atom>,
    // Internal: the slow tick, for a wake-up that died with an earlier incarnation.
    caf::reacts_to<tick_atom>,
    // A controller was (re)started: it needs every newest report.
    caf::reacts_to<peer_changed>,
    // Fault injection.
    caf::reacts_to<crash_atom>,
    // Conforms to STATUS.
    caf::replies_to<status_atom>::with<actor_status>>;

} // namespace rankwise
