#pragma once

#include "messages/common.hpp"
#include "messages/inspect.hpp"

#include <caf/typed_actor.hpp>

namespace rankwise {

/// front -> RequestManager
struct submit_request {
  core::stream_id stream = 0;
  core::request_ptr request;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, submit_request& x) {
  core::detail::request_on_wire request{Inspector::reads_state, x.request};
  auto load = [&]() -> caf::error {
    request.store(x.request);
    return {};
  };
  return f(caf::meta::type_name("submit_request"), x.stream, request.value, caf::meta::load_callback(load));
}

/// front -> RequestManager: the client of this stream is gone.
struct cancel_request {
  core::stream_id stream = 0;
  core::failure reason = core::failure::none;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, cancel_request& x) {
  return f(caf::meta::type_name("cancel_request"), x.stream, x.reason);
}

/// front -> RequestManager: Abort by rid.
struct abort_request {
  std::string rid;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, abort_request& x) {
  return f(caf::meta::type_name("abort_request"), x.rid);
}

/// DPController -> RequestManager: a committed leg went out to its rank.
struct leg_dispatched {
  std::uint16_t pool = 0;
  core::request_handle handle = 0;
  std::uint32_t attempt = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, leg_dispatched& x) {
  return f(caf::meta::type_name("leg_dispatched"), x.pool, x.handle, x.attempt);
}

/// DPController -> RequestManager: aborts numbered up to `until` were passed on to their ranks.
struct aborts_done {
  std::uint16_t pool = 0;
  std::uint64_t until = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, aborts_done& x) {
  return f(caf::meta::type_name("aborts_done"), x.pool, x.until);
}

/// DPController -> RequestManager: what a rank held when it went down.
struct rank_lost {
  core::rank_id rank;
  core::rank_epoch epoch = 0;
  std::vector<core::request_handle> handles;
  std::string cause;
  /// The rank lives, but these may never have been sent to it: their charges stand until RequestManager, who alone
  /// knows which of them have shown a token, ends them.
  bool doubtful = false;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_lost& x) {
  return f(caf::meta::type_name("rank_lost"), x.rank, x.epoch, x.handles, x.cause, x.doubtful);
}

/// Answer to list_atom.
struct request_list {
  std::uint64_t open_streams = 0;
  std::vector<core::request_row> rows;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, request_list& x) {
  return f(caf::meta::type_name("request_list"), x.open_streams, x.rows);
}

/// The REQUEST MANAGER: the one writer of every request's life, from submission to its one outcome. It asks the
/// controllers for ranks, turns engine batches into stream events for the front, and ends what is cancelled, lost or
/// overdue.
using request_manager_actor = caf::typed_actor<
    // A front hands a validated request over; its fate arrives at the front's sink.
    caf::reacts_to<submit_request>,
    // A front's client left, or its deadline passed.
    caf::reacts_to<cancel_request>,
    // Abort by rid; unknown rids are no error.
    caf::reacts_to<abort_request>,
    // One engine batch, however many requests it speaks of.
    caf::reacts_to<core::output_batch>,
    // A controller's answers to orders.
    caf::reacts_to<core::placement>, caf::reacts_to<core::refusal>, caf::reacts_to<leg_dispatched>,
    caf::reacts_to<aborts_done>,
    // A rank went down with these legs.
    caf::reacts_to<rank_lost>,
    // A controller was (re)started: it is told what is placed, and what it may have missed is ordered again.
    caf::reacts_to<peer_changed>,
    // End everything: the node is stopping.
    caf::reacts_to<end_all_atom>,
    // At most so many rows of open requests.
    caf::replies_to<list_atom, std::uint64_t>::with<request_list>,
    // Figures since this incarnation started.
    caf::replies_to<counts_atom>::with<core::request_counts>,
    // Internal: deadlines.
    caf::reacts_to<tick_atom>,
    // Fault injection.
    caf::reacts_to<crash_atom>,
    // Conforms to STATUS.
    caf::replies_to<status_atom>::with<actor_status>>;

} // namespace rankwise
