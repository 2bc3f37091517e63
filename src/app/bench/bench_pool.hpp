#pragma once

#include "core/placement/pool_controller.hpp"

#include <cstdint>

namespace rankwise::app {

/// Brings `ranks` ranks up that are equal but for their KV in use, each with a report, for measuring decisions.
inline void open_measured_ranks(core::pool_controller& controller, std::uint16_t ranks, core::timestamp at) {
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    core::rank_announcement up;
    up.rank = {0, rank};
    up.epoch = 1;
    up.kv_capacity = 1'000'000;
    up.max_running = 256;
    up.chunk_tokens = 8192;
    up.data_parallel_size = ranks;
    controller.rank_up(up, at);
    core::load_report report;
    report.rank = up.rank;
    report.epoch = 1;
    report.sequence = 1;
    report.received_at = at;
    report.kv_used_tokens = 1000U * (rank % 100U);
    report.kv_total_tokens = up.kv_capacity;
    controller.report(report);
  }
}

} // namespace rankwise::app
