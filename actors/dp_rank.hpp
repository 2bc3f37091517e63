#pragma once

#include "actors/handler_stats.hpp"
#include "core/rank/outstanding_legs.hpp"
#include "core/rank/rank_link.hpp"
#include "core/rank/rank_machine.hpp"
#include "core/supervision/event_log.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "messages/request_manager.hpp"
#include "wire/sglang/request_codec.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rankwise {

/// What is known of the engine behind a rank and must outlive the rank's actor. Kept by the Supervisor; one incarnation
/// of the actor at a time reads and writes it.
struct rank_books {
  /// An abort is as good as done when it was sent this long before its link was lost. Longer than any heartbeat
  /// timeout: until then a broken link takes frames as if it were whole.
  static constexpr core::duration unsure_for = std::chrono::seconds{5};
  static constexpr std::size_t sent_max = 65'536; ///< aborts remembered; the oldest are forgotten

  struct sent_abort {
    core::timestamp at;
    std::string engine_rid;
  };
  core::outstanding_legs legs;        ///< what the engine runs for whom
  std::vector<core::owner_id> owners; ///< of each index the newest; what others have here belongs to nobody
  std::vector<std::string> ghosts;    ///< engine rids to be aborted when the link is back
  std::deque<sent_abort> aborts_sent; ///< on the link of `link_epoch`, oldest first
  core::rank_epoch link_epoch = 0;    ///< under which the link was last known to stand
};

struct dp_rank_config {
  core::rank_id id;
  std::string pool_name;
  core::rank_timing timing;
  core::node_boot boot = 0;
  core::rank_link* link = nullptr;   ///< outlives the actor system
  core::event_log* events = nullptr; ///< outlives the actor system; optional
  std::shared_ptr<rank_books> books;
};

struct dp_rank_state {
  static inline const char* name = "dp_rank";

  dp_rank_config config;
  std::optional<core::rank_machine> machine;
  dp_controller_actor controller;
  std::map<core::owner_id, request_manager_actor> owners;
  std::optional<wire::sglang::request_layout> layout;
  core::rank_announcement announcement;
  outstanding_work outstanding;
  bool announced = false; ///< controller and owners count on us under announcement.epoch
  bool ever_ready = false;
  bool given_up = false;                         ///< its engine hangs, and its link was told so
  std::optional<core::timestamp> register_until; ///< since its HELLO
  std::string last_cause;
  handler_stats stats;
};

dp_rank_actor::behavior_type dp_rank(dp_rank_actor::stateful_pointer<dp_rank_state> self, dp_rank_config config);

} // namespace rankwise
