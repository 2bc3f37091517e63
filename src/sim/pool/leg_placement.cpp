#include "sim/pool/leg_placement.hpp"

#include <variant>

namespace rankwise::sim {

bool leg_placement::place(std::uint32_t request, bool may_wait) {
  switch (place_all(request, may_wait)) {
  case answer::waits:
    return false;
  case answer::refused:
    clients_.refuse(request);
    return true;
  case answer::placed:
    break;
  }
  auto& bound_s = world_.result.requests[request].bound_s;
  if (bound_s < 0)
    bound_s = seconds(world_.now);
  return true;
}

leg_placement::answer leg_placement::place_all(std::uint32_t request, bool may_wait) {
  const auto first = place_leg(request, world_.first_pool(), may_wait);
  if (first != answer::placed || !world_.is_pair())
    return first;
  if (place_leg(request, stream_pool, false) == answer::placed)
    return answer::placed;
  give_up_prefill_leg(world_.front_end_of(request), request);
  return answer::refused;
}

leg_placement::answer leg_placement::place_leg(std::uint32_t request, std::uint32_t pool, bool may_wait) {
  const auto said = world_.front_end_of(request).controllers[pool]->place(leg_of(request, may_wait));
  if (std::holds_alternative<core::wait_for_rank>(said))
    return answer::waits;
  const auto* placed = std::get_if<core::placement>(&said);
  if (placed == nullptr)
    return answer::refused;
  take_rank(request, pool, *placed);
  return answer::placed;
}

void leg_placement::take_rank(std::uint32_t request, std::uint32_t pool, const core::placement& placed) {
  const auto rank = placed.rank.rank;
  auto& state = world_.requests[request];
  auto& result = world_.result.requests[request];
  if (pool == stream_pool) {
    result.rank = rank;
    ++world_.result.placed[rank];
  } else {
    result.prefill_rank = rank;
  }
  world_.note(noted::placed + pool, request, rank);
  state.legs[pool] = {.rank = rank, .epoch = placed.epoch, .placed = true, .on_the_way = true, .ended = false};
  world_.pools[pool].seats[rank].send_off(world_.load.requests[request].input_tokens);
  world_.events.push(world_.now + world_.options.placement_delay, event_kind::deliver, request,
                     pool + 2 * state.attempt);
}

core::leg_request leg_placement::leg_of(std::uint32_t request, bool may_wait) const {
  const auto& asked = world_.load.requests[request];
  core::leg_request leg;
  leg.attempt = world_.requests[request].attempt;
  leg.wanted.handle = request + 1;
  leg.wanted.now = world_.now;
  leg.wanted.prompt_tokens = asked.input_tokens;
  leg.wanted.max_new_tokens = world_.options.max_new_tokens;
  leg.wanted.blocks = world_.requests[request].blocks;
  leg.wanted.block_tokens = world_.load.block_tokens;
  leg.wanted.may_wait = may_wait;
  leg.wanted.priority = asked.priority;
  if (asked.deadline_s)
    leg.wanted.first_token_by = at_seconds(world_.result.requests[request].arrival_s + *asked.deadline_s);
  return leg;
}

void leg_placement::give_up_decode_leg(front_end& front, std::uint32_t request) {
  front.controllers[stream_pool]->end(request + 1, world_.now);
  engines_.abort(request, stream_pool);
}

void leg_placement::give_up_prefill_leg(front_end& front, std::uint32_t request) {
  progress_.forget_end_of_prefill(request);
  front.controllers[prefill_pool]->end(request + 1, world_.now);
  if (world_.requests[request].legs[prefill_pool].on_the_way)
    world_.end_way(request, prefill_pool);
  engines_.abort(request, prefill_pool);
}

} // namespace rankwise::sim
