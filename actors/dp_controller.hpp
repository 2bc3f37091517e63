#pragma once

#include "actors/handler_stats.hpp"
#include "core/placement/order_desk.hpp"
#include "core/supervision/event_log.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "messages/request_manager.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace rankwise {

struct dp_controller_config {
  core::pool_options pool;           ///< with the term of this incarnation
  core::event_log* events = nullptr; ///< outlives the actor system; optional
  /// How long it took to choose and charge a rank, or to refuse. Called inside the handler: cheap, and no throw.
  std::function<void(core::duration)> on_decision;
  core::decision_recorders recorders; ///< outlive the actor system
  /// After a restart: how many ranks, and how many RequestManagers, will introduce themselves. Placements wait for
  /// them, at most `settle_max`.
  std::size_t ranks_expected = 0;
  std::size_t owners_expected = 0;
  core::duration settle_max = std::chrono::milliseconds{300};
  core::duration tick = std::chrono::milliseconds{250};
};

struct dp_controller_state {
  static inline const char* name = "dp_controller";

  dp_controller_config config;
  std::optional<core::order_desk> desk;
  core::desk_effects effects;
  std::map<core::owner_id, request_manager_actor> owners; ///< of each index the present one
  std::vector<core::owner_id> owner_of_index;
  std::vector<dp_rank_actor> ranks; ///< by rank number
  handler_stats stats;
};

dp_controller_actor::behavior_type dp_controller(dp_controller_actor::stateful_pointer<dp_controller_state> self,
                                                 dp_controller_config config);

} // namespace rankwise
