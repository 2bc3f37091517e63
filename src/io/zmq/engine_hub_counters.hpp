#pragma once

#include "wire/sglang/wire_error.hpp"

#include <array>
#include <atomic>
#include <cstdint>

namespace rankwise::io {

/// What an engine hub has counted since its start. Any thread may read it at any time.
struct engine_hub_counters {
  std::atomic<std::uint64_t> frames_received{0};        ///< Frames that ranks sent.
  std::atomic<std::uint64_t> bytes_received{0};         ///< Bytes of these frames.
  std::atomic<std::uint64_t> frames_sent{0};            ///< Frames handed to ZeroMQ for ranks.
  std::atomic<std::uint64_t> bytes_sent{0};             ///< Bytes of these frames.
  std::atomic<std::uint64_t> frames_of_closed_links{0}; ///< Frames dropped as their link had been closed.
  std::atomic<std::uint64_t> unknown_rids{0};           ///< Outputs dropped as their request id is not one of ours.
  std::atomic<std::uint64_t> outputs_of_other_ranks{
      0};                                        ///< Outputs dropped as they name another rank than their link's.
  std::atomic<std::uint64_t> foreign_outputs{0}; ///< Outputs of requests that another start of the node placed.
  std::atomic<std::uint64_t> foreign_aborts{0};  ///< Aborts sent for such requests.
  std::atomic<std::uint64_t> frames_of_given_up_links{0}; ///< Frames dropped as their rank had been given up.
  std::atomic<std::uint64_t> peers_refused{0};     ///< Connections from addresses that are not in `allowed_peers`.
  std::atomic<std::uint64_t> reports{0};           ///< Load reports taken.
  std::atomic<std::uint64_t> reports_absent{0};    ///< Output frames without a load report.
  std::atomic<std::uint64_t> reports_malformed{0}; ///< Output frames whose load report could not be read.
  std::atomic<std::uint64_t> receive_pauses{0};    ///< Rounds in which `may_receive` said no.
  std::atomic<std::uint64_t> send_queue_full{0};   ///< Frames refused because a rank's send queue was full.
  /// Frames that could not be read, by what was wrong with them.
  std::array<std::atomic<std::uint64_t>, wire::sglang::wire_error_kind_count> malformed{};

  /// Counts a frame that could not be read.
  void count_malformed(wire::sglang::wire_error_kind kind) noexcept { ++malformed[static_cast<std::size_t>(kind)]; }
};

} // namespace rankwise::io
