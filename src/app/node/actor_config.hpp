#pragma once

#include "messages/type_ids.hpp"

#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rankwise::app {

/// How a node runs its actors: one queue for all workers, because the few actors of a node would often sit behind a
/// busy one while stealing.
class actor_config final : public caf::actor_system_config {
 public:
  explicit actor_config(std::uint32_t threads) {
    add_message_types<caf::id_block::rankwise>();
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", std::size_t{std::max(threads, 2u)});
    set("scheduler.max-throughput", std::size_t{100});
  }
};

} // namespace rankwise::app
