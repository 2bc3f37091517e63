#pragma once

#include "actors/handler_stats.hpp"
#include "core/load/load_board.hpp"
#include "messages/dp_controller.hpp"
#include "messages/load_forwarder.hpp"

#include <memory>
#include <vector>

namespace rankwise {

struct load_forwarder_config {
  std::shared_ptr<core::load_board> board;
  std::size_t pool_count = 1;
  core::duration slow_tick = std::chrono::milliseconds{500};
  bool enabled = true; ///< false: reports stay on the board (`--no-load-forwarding`)
};

struct load_forwarder_state {
  static inline const char* name = "load_forwarder";

  load_forwarder_config config;
  std::vector<dp_controller_actor> controllers;         // by pool
  std::vector<std::vector<core::load_report>> outgoing; // by pool, reused
  handler_stats stats;
};

load_forwarder_actor::behavior_type load_forwarder(load_forwarder_actor::stateful_pointer<load_forwarder_state> self,
                                                   load_forwarder_config config);

} // namespace rankwise
