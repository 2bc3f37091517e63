#include "sim/pool/rank_faults.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace rankwise::sim {

void rank_faults::start() {
  for (std::uint32_t pool = 0; pool < world_.pools.size(); ++pool)
    for (std::size_t rank = 0; rank < world_.pools[pool].seats.size(); ++rank)
      open(pool, static_cast<std::uint16_t>(rank));
}

void rank_faults::happen(std::uint32_t index) {
  const auto& h = world_.options.happenings[index];
  const auto pool = h.pool == core::pool_role::decode ? stream_pool : world_.first_pool();
  auto& seats = world_.pools[pool].seats;
  if (h.rank >= seats.size())
    return;
  switch (h.what) {
  case rank_happening::kind::slows:
    seats[h.rank].engine->set_slow_factor(h.factor);
    break;
  case rank_happening::kind::dies:
    if (seats[h.rank].alive)
      lose(pool, h.rank);
    break;
  case rank_happening::kind::freezes:
    freeze(pool, h.rank);
    break;
  case rank_happening::kind::joins:
    join(pool, h.rank);
    break;
  case rank_happening::kind::drains:
    drain(pool, h.rank);
    break;
  }
}

void rank_faults::notice_frozen(std::uint32_t pool, std::uint16_t rank) {
  // Unless it died and another one froze meanwhile.
  if (world_.pools[pool].seats[rank].frozen_since == world_.now - world_.options.freeze_detection)
    lose(pool, rank);
}

void rank_faults::open(std::uint32_t pool, std::uint16_t rank) {
  const auto& engine = world_.options.engine;
  core::rank_announcement up;
  up.rank = {static_cast<std::uint16_t>(pool), rank};
  up.epoch = world_.pools[pool].seats[rank].epoch;
  up.kv_capacity = engine.kv_capacity_tokens;
  up.max_running = engine.running_requests_max;
  up.chunk_tokens = engine.chunk_tokens;
  up.data_parallel_size = static_cast<std::uint32_t>(world_.pools[pool].seats.size());
  up.renewed = up.epoch != first_epoch;
  for (const auto& front : world_.front_ends)
    front->controllers[pool]->rank_up(up, world_.now);
}

void rank_faults::freeze(std::uint32_t pool, std::uint16_t rank) {
  auto& seat = world_.pools[pool].seats[rank];
  if (!seat.alive || seat.frozen_since != never)
    return;
  seat.frozen_since = world_.now;
  seat.engine->freeze();
  world_.events.push(world_.now + world_.options.freeze_detection, event_kind::detected, pool, rank);
}

void rank_faults::join(std::uint32_t pool, std::uint16_t rank) {
  auto& seat = world_.pools[pool].seats[rank];
  if (seat.alive && !seat.draining)
    return;
  seat.alive = true;
  seat.draining = false;
  open(pool, rank);
}

void rank_faults::drain(std::uint32_t pool, std::uint16_t rank) {
  auto& seat = world_.pools[pool].seats[rank];
  if (!seat.alive)
    return;
  seat.draining = true;
  for (const auto& front : world_.front_ends)
    front->controllers[pool]->rank_paused({static_cast<std::uint16_t>(pool), rank}, seat.epoch,
                                          core::rank_state::draining);
}

/// Its requests without a token move to another rank, the others are lost.
void rank_faults::lose(std::uint32_t pool, std::uint16_t rank) {
  world_.pools[pool].seats[rank].alive = false;
  std::vector<std::uint32_t> to_move;
  for (const auto& front : world_.front_ends)
    take_legs_back(pool, rank, *front, to_move);
  replace_process(pool, rank);
  std::sort(to_move.begin(), to_move.end());
  for (const auto request : to_move)
    placement_.place_or_refuse(request);
}

void rank_faults::take_legs_back(std::uint32_t pool, std::uint16_t rank, front_end& front,
                                 std::vector<std::uint32_t>& to_move) {
  const core::rank_id id{static_cast<std::uint16_t>(pool), rank};
  for (const auto handle : front.controllers[pool]->rank_down(id, world_.pools[pool].seats[rank].epoch)) {
    const auto request = static_cast<std::uint32_t>(handle - 1);
    auto& state = world_.requests[request];
    auto& leg = state.legs[pool];
    if (world_.result.requests[request].end_s >= 0 || leg.ended)
      continue; // it was done, which its controller had not yet heard
    leg.placed = false;
    if (state.last_token != never) {
      clients_.end(request, true);
      continue;
    }
    if (!world_.is_pair())
      ++state.attempt;
    else if (pool == prefill_pool)
      placement_.give_up_decode_leg(front, request);
    else
      placement_.give_up_prefill_leg(front, request);
    to_move.push_back(request);
  }
  front.generated[pool][rank] = 0;
}

/// The process is gone with all that it had begun; an idle one stands there until the rank joins again.
void rank_faults::replace_process(std::uint32_t pool_index, std::uint16_t rank) {
  auto& pool = world_.pools[pool_index];
  auto& seat = pool.seats[rank];
  ++seat.epoch;
  world_.count_work_of(*seat.engine);
  seat.engine =
      std::make_unique<engine_rank_model>(world_.engine_of(pool.role), world_.options.seed * 1000 + 77 + rank);
  if (pool.group)
    pool.group->replace(rank, seat.engine.get());
  seat.sampled_step = 0;
  seat.draining = false;
  if (std::exchange(seat.frozen_since, never) != never) {
    pool.outputs[rank].clear(); // said to nobody
    if (pool.group)
      engines_.schedule(pool_index, rank); // the others waited for it
  }
}

} // namespace rankwise::sim
