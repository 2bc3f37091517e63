#pragma once

#include "actors/dp_controller.hpp"
#include "actors/dp_rank.hpp"
#include "actors/introspector.hpp"
#include "actors/load_forwarder.hpp"
#include "actors/request_manager.hpp"
#include "core/supervision/event_log.hpp"
#include "core/supervision/restart_policy.hpp"
#include "messages/actor_directory.hpp"
#include "messages/supervisor.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace rankwise {

struct supervisor_config {
  std::vector<core::pool_options> pools;
  core::request_table_options requests; ///< streams_max: of all RequestManagers together
  std::uint16_t managers = 1;           ///< RequestManagers; each request belongs to one of them
  core::rank_timing rank_timing;
  core::node_boot boot = 0;
  core::restart_limits restarts;
  /// LoadForwarder's own limits, e.g. without a maximum for tests that crash it all the time.
  core::restart_limits forwarder_restarts;
  core::duration park_retry = std::chrono::seconds{30};
  std::shared_ptr<core::load_board> board;
  core::rank_link* link = nullptr;                 ///< outlives the actor system
  core::stream_sink* sink = nullptr;               ///< outlives the actor system
  core::history_recorder* history = nullptr;       ///< optional
  core::event_log* events = nullptr;               ///< outlives the actor system; optional
  core::load_history* loads = nullptr;             ///< outlives the actor system; optional
  std::function<void(core::duration)> on_decision; ///< of every pool's controller, from its thread
  std::vector<core::decision_recorders> recorders; ///< by pool, outliving the actor system; may be empty
  /// Ranks that an operator had drained before the node was restarted.
  std::vector<core::rank_id> drained;
  /// An operator drained a rank, or it takes work again.
  std::function<void(core::rank_id, bool drained)> on_drain_wish;
  std::shared_ptr<actor_directory> directory;
  bool load_forwarding = true;
  /// LoadForwarder on a thread of its own; false only under a test scheduler.
  bool detach_forwarder = true;
  std::uint64_t seed = 1;
  /// A child without which the node cannot work is beyond its limit: the process must end. Called once.
  std::function<void(std::string reason)> on_fatal;
};

struct supervisor_state {
  static inline const char* name = "supervisor";

  using child_key = std::pair<std::string, core::rank_id>;

  struct child {
    caf::strong_actor_ptr handle;
    std::optional<core::restart_policy> policy;
    std::uint32_t incarnation = 0;
    std::uint32_t restarts = 0;
    std::string last_error;
    bool parked = false;
    std::optional<core::timestamp> died_at; ///< the last time
    std::optional<link_event> registered; ///< of a dp_rank: what its link said last, for a new incarnation of the actor
    std::optional<link_event> hello;      ///< of a dp_rank that has not registered since: the same
    std::optional<link_event> lost;       ///< of a dp_rank: its link is lost since then
    std::optional<rank_command> drain;    ///< of a dp_rank: an operator's, until undrain or HELLO
    std::shared_ptr<rank_books> books;    ///< of a dp_rank
    core::owner_id owner = 0;             ///< of a request_manager: the number of this incarnation
  };

  supervisor_config config;
  std::map<child_key, child> children;
  std::mt19937_64 random;
  core::owner_id owners_given = 0; ///< numbers given to incarnations of RequestManagers
  handler_stats stats;
  bool fatal = false;
};

supervisor_actor::behavior_type supervisor(supervisor_actor::stateful_pointer<supervisor_state> self,
                                           supervisor_config config);

} // namespace rankwise
