#pragma once

#include "core/base/ids.hpp"
#include "io/zmq/engine_hub_callbacks.hpp"
#include "io/zmq/engine_hub_counters.hpp"
#include "io/zmq/engine_hub_options.hpp"
#include "io/zmq/send_queue.hpp"

namespace rankwise::io {

/// What all parts of one engine hub share: its options, its callbacks and its counters. The hub owns it and outlives
/// its parts. Options and callbacks never change; the counters may be changed on any thread.
struct hub_context {
  const engine_hub_options options;
  const engine_hub_callbacks callbacks;
  engine_hub_counters counters;

  /// The options of a rank's pool; `rank.pool` must be one of the pools.
  [[nodiscard]] const hub_pool_options& pool_of(core::rank_id rank) const { return options.pools[rank.pool]; }
  /// How much may wait for one rank.
  [[nodiscard]] send_queue_limits queue_limits() const noexcept {
    return {options.send_queue_requests_max, options.send_queue_bytes_max};
  }
};

} // namespace rankwise::io
