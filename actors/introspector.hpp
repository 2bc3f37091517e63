#pragma once

#include "actors/handler_stats.hpp"
#include "core/load/load_history.hpp"
#include "messages/actor_directory.hpp"
#include "messages/introspector.hpp"

#include <memory>
#include <optional>

namespace rankwise {

struct introspector_config {
  std::shared_ptr<actor_directory> directory;
  /// An actor that does not answer within this is shown as such.
  core::duration answer_max = std::chrono::milliseconds{500};
  /// A newer question within this time is answered from the last round.
  core::duration reuse_for = std::chrono::milliseconds{100};
  core::load_history* loads = nullptr; ///< outlives the actor system; optional
};

struct introspector_state {
  static inline const char* name = "introspector";

  introspector_config config;
  std::optional<node_snapshot> last;
  core::timestamp taken_at{};
  handler_stats stats;
};

introspector_actor::behavior_type introspector(introspector_actor::stateful_pointer<introspector_state> self,
                                               introspector_config config);

} // namespace rankwise
