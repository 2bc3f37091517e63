#pragma once

#include "actors/handler_stats.hpp"
#include "core/request/request_table.hpp"
#include "core/request/stream_sink.hpp"
#include "messages/actor_directory.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "messages/request_manager.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rankwise {

struct request_manager_config {
  std::string name;                  ///< among several of a node; empty for the only one
  core::request_table_options table; ///< with the owner number of this incarnation
  std::size_t pool_count = 1;
  core::stream_sink* sink = nullptr;         ///< outlives the actor system
  core::history_recorder* history = nullptr; ///< optional; outlives the actor system
  std::shared_ptr<manager_backlog> backlog;  ///< of this incarnation
};

struct request_manager_state {
  static inline const char* name = "request_manager";

  std::optional<core::request_table> table;
  std::vector<dp_controller_actor> controllers; // by pool; null until announced
  std::map<core::rank_id, dp_rank_actor> ranks; // that have announced themselves
  core::request_effects effects;
  request_manager_config config;
  handler_stats stats;
  bool tick_pending = false;
};

request_manager_actor::behavior_type
request_manager(request_manager_actor::stateful_pointer<request_manager_state> self, request_manager_config config);

} // namespace rankwise
