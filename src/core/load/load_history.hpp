#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/load/rank_row.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace rankwise::core {

/// What each rank held over the last five minutes, so that somebody who looks only now sees how it came to this.
/// Written by one thread, read by any.
class load_history {
 public:
  static constexpr duration step = std::chrono::seconds{1};
  static constexpr std::size_t samples_max = 300;

  struct sample {
    rank_state state = rank_state::joining;
    std::uint32_t requests = 0; ///< placed and not ended
    std::uint32_t waiting = 0;  ///< in the engine's own queue, as it last reported
    float kv_share = 0;         ///< of the KV capacity, by the ledger
  };
  /// Of one rank, oldest first, one every `step` until the newest one; nothing where the rank was not seen.
  using series = std::deque<std::optional<sample>>;

  /// The ranks that there are now; those missing from it get a gap, and are forgotten once nothing else is left.
  void add(const std::vector<rank_row>& rows);

  [[nodiscard]] std::map<rank_id, series> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<rank_id, series> ranks_;
};

} // namespace rankwise::core
