#pragma once

#include "actors/handler_stats.hpp"
#include "core/placement/pool_controller.hpp"
#include "core/placement/waiting_room.hpp"
#include "core/supervision/event_log.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "messages/request_manager.hpp"

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace rankwise {

struct dp_controller_config {
  core::pool_options pool;
  core::node_boot boot = 0;
  core::event_log* events = nullptr; ///< outlives the actor system; optional
  /// How long it took to choose and charge a rank, or to refuse. Called inside the handler: cheap, and no throw.
  std::function<void(core::duration)> on_decision;
  core::decision_recorders recorders; ///< outlive the actor system
  /// After a restart: how many ranks will announce themselves. Placements wait for them, at most `settle_max`.
  std::size_t ranks_expected = 0;
  core::duration settle_max = std::chrono::milliseconds{300};
  core::duration tick = std::chrono::milliseconds{250};
};

struct dp_controller_state {
  static inline const char* name = "dp_controller";

  /// A leg that is charged: what is needed to dispatch it later, or to abort it.
  struct charged_leg {
    std::uint16_t rank = 0;
    core::rank_epoch epoch = 0;
    std::uint32_t attempt = 0;
    std::uint32_t sample = 0;
    bool held = false;
    core::request_ptr request;
  };

  dp_controller_config config;
  std::optional<core::pool_controller> pool;
  std::optional<core::waiting_room> waiting; // for room in the pool
  request_manager_actor manager;
  std::vector<dp_rank_actor> ranks; // by rank number
  std::vector<core::rank_epoch> epochs;
  std::vector<bool> orphaned;  // by rank number: its actor died, and the next one has not announced itself
  std::vector<bool> told_idle; // by rank number: the last outstanding_work said 0
  std::unordered_map<core::request_handle, charged_leg> legs;
  std::map<std::uint16_t, std::vector<std::string>> ghosts; // by rank without an actor: rids that its engine may run
  std::uint64_t aborts_unsaid_until = 0;                    // carried out, but not acknowledged while ghosts are kept
  handler_stats stats;

  // Until all expected ranks are back: what has to wait. Bounded by what RequestManager lets in flight.
  bool settling = false;
  std::size_t announced = 0;
  std::vector<std::uint16_t> doubtful_ranks; // whose actor died shortly before
  std::vector<core::leg_record> waiting_legs;
  std::vector<core::leg_record> waiting_ended;
  std::vector<core::batch_progress> waiting_progress;
  std::uint64_t waiting_aborts_until = 0;
  std::vector<pool_orders> waiting_orders;
};

dp_controller_actor::behavior_type dp_controller(dp_controller_actor::stateful_pointer<dp_controller_state> self,
                                                 dp_controller_config config);

} // namespace rankwise
