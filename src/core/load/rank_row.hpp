#pragma once

#include "core/base/ids.hpp"
#include "core/rank/rank_machine.hpp"

#include <cstdint>

namespace rankwise::core {

/// One rank as its controller shows it to an operator: its state, what the ledger holds of it, its newest report.
struct rank_row {
  rank_id rank;
  rank_epoch epoch = 0;
  rank_state state = rank_state::joining;
  std::uint32_t requests = 0;
  std::uint64_t tokens = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t kv_capacity = 0;
  std::uint32_t max_running = 0;
  std::uint64_t placements = 0;
  bool reported = false;
  double report_age_s = -1; ///< -1: nothing reported in this epoch
  std::uint32_t reported_running = 0;
  std::uint32_t reported_waiting = 0;
  std::uint64_t reported_kv_used = 0;
  double share = 1;            ///< of what its room would give it: slow start, errors
  bool ejected = false;        ///< for its engine's errors, for a while
  std::uint32_t drain_cut = 0; ///< of a drained rank: legs that its drain's deadline took from it

  /// Of the KV capacity, by the ledger; 0 when no capacity was registered.
  [[nodiscard]] double kv_share() const noexcept {
    return kv_capacity == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(kv_capacity);
  }
};

} // namespace rankwise::core
