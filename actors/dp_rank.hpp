#pragma once

#include "actors/handler_stats.hpp"
#include "core/rank/rank_link.hpp"
#include "core/rank/rank_machine.hpp"
#include "core/supervision/event_log.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "wire/sglang/request_codec.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rankwise {

/// What the engine of a rank may run for nobody. Kept by the Supervisor, so that it outlives the actor; one incarnation
/// of the actor at a time reads and writes it.
struct unsettled_aborts {
  /// An abort is as good as done when it was sent this long before its link was lost. Longer than any heartbeat
  /// timeout: until then a broken link takes frames as if it were whole.
  static constexpr core::duration unsure_for = std::chrono::seconds{5};
  static constexpr std::size_t sent_max = 65'536; ///< the oldest are forgotten

  struct sent_abort {
    core::timestamp at;
    std::string engine_rid;
  };
  std::vector<std::string> ghosts; ///< to be aborted when the link is back
  std::deque<sent_abort> sent;     ///< on the link of `epoch`, oldest first
  core::rank_epoch epoch = 0;
};

struct dp_rank_config {
  core::rank_id id;
  std::string pool_name;
  core::rank_timing timing;
  core::node_boot boot = 0;
  core::rank_link* link = nullptr;   ///< outlives the actor system
  core::event_log* events = nullptr; ///< outlives the actor system; optional
  /// How long a returning rank waits for the controller to say what it still runs.
  core::duration ghosts_wait_max = std::chrono::seconds{1};
  std::shared_ptr<unsettled_aborts> aborts;
};

struct dp_rank_state {
  static inline const char* name = "dp_rank";

  dp_rank_config config;
  std::optional<core::rank_machine> machine;
  dp_controller_actor controller;
  std::optional<wire::sglang::request_layout> layout;
  core::rank_announcement announcement;
  outstanding_work outstanding;
  bool announced = false; // the controller counts on us under announcement.epoch
  bool ever_ready = false;
  bool given_up = false; // its engine hangs, and its link was told so
  bool waiting_for_ghosts = false;
  std::optional<core::timestamp> register_until; // since its HELLO
  std::string last_cause;
  handler_stats stats;
};

dp_rank_actor::behavior_type dp_rank(dp_rank_actor::stateful_pointer<dp_rank_state> self, dp_rank_config config);

} // namespace rankwise
