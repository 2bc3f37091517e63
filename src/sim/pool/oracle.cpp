#include "sim/pool/oracle.hpp"

#include <algorithm>

namespace rankwise::sim {

std::optional<core::choice> oracle::choose(std::span<const core::rank_view> ranks,
                                           const core::placement_request& request) {
  views_.assign(ranks.begin(), ranks.end());
  for (auto& v : views_) {
    const auto& seat = pool_.seats[v.rank];
    const auto load = seat.engine->load();
    v.requests = load.num_running + load.num_waiting + seat.undelivered;
    v.prefill_tokens = v.work_tokens = seat.engine->tokens_to_compute() + seat.undelivered_tokens;
    v.prefilling = std::min(v.prefilling, v.requests);
    v.tokens = load.kv_used_tokens + seat.engine->waiting_tokens() + seat.undelivered_tokens;
  }
  return rule_->choose(views_, request);
}

} // namespace rankwise::sim
