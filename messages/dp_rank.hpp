#pragma once

#include "messages/common.hpp"
#include "messages/inspect.hpp"

#include <caf/typed_actor.hpp>

#include <map>

namespace rankwise {

/// What happened on a rank's link.
enum class link_event_kind : std::uint8_t {
  hello = 0,       ///< a new incarnation said HELLO
  registered = 1,  ///< it registered: capacity and layouts are known
  refused = 2,     ///< it registered something that we cannot work with; `cause` names the field
  lost = 3,        ///< disconnected, heartbeat timeout, or ENGINE_CORE_DEAD
  reconnected = 4, ///< the same process is back on its old endpoints without a HELLO, as a new epoch
  restored = 5,    ///< known from an earlier process of this node, with its registration; not yet reconnected
};

/// io -> Supervisor -> DPRank
struct link_event {
  link_event_kind kind = link_event_kind::hello;
  core::rank_id rank;
  core::rank_epoch epoch = 0;
  std::string cause;
  // Of `registered` and `restored`:
  std::uint64_t kv_capacity = 0;
  std::uint32_t max_running = 0;
  std::uint64_t chunk_tokens = 0;
  std::uint32_t data_parallel_size = 1;
  std::uint64_t max_model_len = 0;
  std::string engine_version;
  std::map<std::string, std::vector<std::string>> layouts;
  std::string model_name;               ///< a name or a folder; empty: the engine does not say
  std::uint32_t data_parallel_rank = 0; ///< of its engine; its number in the pool is higher by the engine's index
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, link_event& x) {
  return f(caf::meta::type_name("link_event"), x.kind, x.rank, x.epoch, x.cause, x.kv_capacity, x.max_running,
           x.chunk_tokens, x.data_parallel_size, x.max_model_len, x.engine_version, x.layouts, x.model_name,
           x.data_parallel_rank);
}

/// RequestManager -> DPRank: send this to the engine.
struct dispatch_order {
  core::request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t sample = 0;
  core::rank_epoch epoch = 0;
  core::request_ptr request;
  bool has_bootstrap = false;
  core::bootstrap_info bootstrap;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, dispatch_order& x) {
  core::detail::request_on_wire request{Inspector::reads_state, x.request};
  auto load = [&]() -> caf::error {
    request.store(x.request);
    return {};
  };
  return f(caf::meta::type_name("dispatch_order"), x.handle, x.attempt, x.sample, x.epoch, request.value,
           x.has_bootstrap, x.bootstrap, caf::meta::load_callback(load));
}

/// RequestManager -> DPRank: these legs are over. Never overtakes the dispatch of the same leg.
struct close_order {
  std::vector<core::leg_id> aborts; ///< their owner gave them up: the engine is told, each once and while it runs them
  std::vector<core::leg_id> ended;  ///< the engine ended them by itself, or is about to
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, close_order& x) {
  return f(caf::meta::type_name("close_order"), x.aborts, x.ended);
}

/// RequestManager -> DPRank, in answer to rank_route: all the legs that this owner has sent to the rank. What was lost
/// with an earlier actor of the rank is found by it.
struct legs_on_rank {
  core::owner_id owner = 0;
  core::rank_epoch epoch = 0;
  std::vector<core::leg_id> legs;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, legs_on_rank& x) {
  return f(caf::meta::type_name("legs_on_rank"), x.owner, x.epoch, x.legs);
}

/// DPController -> DPRank, periodically: by this a silence is judged.
struct outstanding_work {
  std::uint32_t requests = 0;
  std::uint64_t prefill_tokens = 0;   ///< of prompts to do
  std::uint64_t prefilled_tokens = 0; ///< of prompts done since the rank opened
  bool draining = false;              ///< the controller gives the rank no more work: `requests` can only fall
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, outstanding_work& x) {
  return f(caf::meta::type_name("outstanding_work"), x.requests, x.prefill_tokens, x.prefilled_tokens, x.draining);
}

/// What an operator asks of a rank.
enum class rank_wish : std::uint8_t {
  drain = 0,   ///< no new work; what it has ends by itself, or at the deadline
  undrain = 1, ///< work again
  remove = 2,  ///< close its endpoints and forget it
};

/// admin -> Supervisor -> DPRank
struct rank_command {
  core::rank_id rank;
  rank_wish wish = rank_wish::drain;
  core::duration deadline{}; ///< of drain, from now
  bool force = false;        ///< of remove: although requests are on it, which move or fail as rank_lost
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_command& x) {
  return f(caf::meta::type_name("rank_command"), x.rank, x.wish, x.deadline, x.force);
}

struct rank_command_result {
  bool done = false;
  bool known = true; ///< false: there is no such rank
  core::rank_state state = core::rank_state::down;
  std::string text; ///< what happened, or why not
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_command_result& x) {
  return f(caf::meta::type_name("rank_command_result"), x.done, x.known, x.state, x.text);
}

/// A DP RANK: one engine rank of a pool, through all of its incarnations. Owns its epoch, its state, its layout, and
/// the book of what its engine runs for which owner.
using dp_rank_actor = caf::typed_actor<
    // Its link: HELLO, registration, loss, return.
    caf::reacts_to<link_event>,
    // Work and its end, from the owners of requests.
    caf::reacts_to<dispatch_order>, caf::reacts_to<close_order>, caf::reacts_to<legs_on_rank>,
    // An operator's wish.
    caf::replies_to<rank_command>::with<rank_command_result>,
    // By what a silence is judged, and whether a drain is over.
    caf::reacts_to<outstanding_work>,
    // The controller or a RequestManager was (re)started: announce yourself again; what an earlier incarnation of that
    // RequestManager had here is aborted.
    caf::reacts_to<peer_changed>,
    // Internal: the time to register is over.
    caf::reacts_to<tick_atom>,
    // Fault injection.
    caf::reacts_to<crash_atom>,
    // Conforms to STATUS.
    caf::replies_to<status_atom>::with<actor_status>>;

} // namespace rankwise
