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

/// DPRank -> RequestManager: this rank takes dispatches under `epoch` by way of `handle`. What it ran under earlier
/// epochs is lost. Answered by legs_on_rank.
struct rank_route {
  core::rank_id rank;
  core::rank_epoch epoch = 0;
  caf::strong_actor_ptr handle;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_route& x) {
  return f(caf::meta::type_name("rank_route"), x.rank, x.epoch, x.handle);
}

/// DPRank -> RequestManager (of a parked rank: Supervisor): whatever this rank ran up to `epoch` is lost.
struct rank_lost {
  core::rank_id rank;
  core::rank_epoch epoch = 0;
  std::string cause;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_lost& x) {
  return f(caf::meta::type_name("rank_lost"), x.rank, x.epoch, x.cause);
}

/// DPRank -> RequestManager: the leg was not sent. `reason`: rank_queue_full, or no_rank_available when the rank went
/// down, or dialled in again, before the order reached it.
struct dispatch_failed {
  core::rank_id rank;
  core::leg_id leg;
  core::failure reason = core::failure::none;
  std::string text; ///< names the rank and what is with it
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, dispatch_failed& x) {
  return f(caf::meta::type_name("dispatch_failed"), x.rank, x.leg, x.reason, x.text);
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

/// The REQUEST MANAGER: the owner of its requests, the one writer of each one's life from submission to its one
/// outcome. It asks the controllers for ranks, sends the legs there, turns engine batches into stream events for the
/// front, and ends what is cancelled, lost or overdue. A node has one or several; a request belongs to one of them.
using request_manager_actor = caf::typed_actor<
    // A front hands a validated request over; its fate arrives at the front's sink.
    caf::reacts_to<submit_request>,
    // A front's client left, or its deadline passed.
    caf::reacts_to<cancel_request>,
    // Abort by rid; unknown rids are no error.
    caf::reacts_to<abort_request>,
    // One engine batch, however many requests of this owner it speaks of.
    caf::reacts_to<core::output_batch>,
    // A controller's answers to orders.
    caf::reacts_to<core::placement>, caf::reacts_to<core::refusal>,
    // A rank takes dispatches, did not carry one out, or is gone with what it ran.
    caf::reacts_to<rank_route>, caf::reacts_to<dispatch_failed>, caf::reacts_to<rank_lost>,
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
