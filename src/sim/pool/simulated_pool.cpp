#include "sim/pool/simulated_pool.hpp"

#include <algorithm>
#include <utility>

namespace rankwise::sim {

void rank_seat::send_off(std::uint64_t tokens) noexcept {
  undelivered_tokens += tokens;
  ++undelivered;
}

void rank_seat::end_way(std::uint64_t tokens) noexcept {
  undelivered_tokens -= std::min(undelivered_tokens, tokens);
  undelivered -= std::min(undelivered, 1U);
}

std::optional<core::timestamp> simulated_pool::next_event_time(std::uint32_t rank) const {
  return group ? group->next_event_time() : seats[rank].engine->next_event_time();
}

simulated_pool make_simulated_pool(const engine_rank_options& engine, std::size_t ranks, bool lockstep,
                                   std::uint64_t seed) {
  simulated_pool pool;
  pool.role = engine.role;
  pool.seats.resize(ranks);
  pool.outputs.resize(ranks);
  std::vector<engine_rank_model*> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    pool.seats[rank].engine = std::make_unique<engine_rank_model>(engine, seed + rank);
    all.push_back(pool.seats[rank].engine.get());
  }
  if (lockstep)
    pool.group.emplace(std::move(all));
  return pool;
}

} // namespace rankwise::sim
