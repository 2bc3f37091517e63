#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"

#include <cstdint>

namespace rankwise::core {

/// What an engine rank says of itself on the tail of an output batch (engine wire, columns 12-15). The engine samples
/// it at most every 50 ms, so it lags; the engine sends kv_total_tokens 0 when it could not take the sample, which is
/// "no report" and never reaches this struct.
struct load_report {
  rank_id rank;
  rank_epoch epoch = 0;
  std::uint64_t sequence = 0; ///< Counts the reports of this epoch as they were received, from 1.
  timestamp received_at{};    ///< When the receiver thread read it.
  std::uint32_t num_running = 0;
  std::uint32_t num_waiting = 0;
  std::uint64_t kv_used_tokens = 0;
  std::uint64_t kv_total_tokens = 0;

  friend bool operator==(const load_report&, const load_report&) = default;
};

} // namespace rankwise::core
