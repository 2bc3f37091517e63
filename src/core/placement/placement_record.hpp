#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/placement/policy.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rankwise::core {

/// Why a leg of a request went where it went: what the controller saw and by what rule it decided.
struct placement_record {
  struct candidate {
    rank_view view;
    std::optional<double> score; ///< lower is better; none for rules without one
  };

  std::string rid; ///< the client's
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t sample = 0;
  std::uint16_t pool = 0;
  std::uint16_t rank = 0;
  rank_epoch epoch = 0;
  bool refused = false; ///< `rule` says why
  std::string rule;     ///< "policy headroom", "data_parallel_rank", "bootstrap_room"
  timestamp at{};
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_new_tokens = 0;
  std::vector<candidate> candidates; ///< empty when nothing was compared
};

/// Records that a pool keeps; the oldest one is overwritten.
inline constexpr std::size_t placement_records_max = 1024;

} // namespace rankwise::core
