#include "sim/pool/engine_runner.hpp"

#include <algorithm>
#include <utility>

namespace rankwise::sim {

void engine_runner::deliver(std::uint32_t request, std::uint32_t pool_index) {
  auto& pool = world_.pools[pool_index];
  const auto& state = world_.requests[request];
  const auto& leg = state.legs[pool_index];
  const auto& seat = pool.seats[leg.rank];
  world_.end_way(request, pool_index);
  if (!seat.alive || leg.epoch != seat.epoch || !leg.placed)
    return; // lost with the rank meanwhile
  const auto& asked = world_.load.requests[request];
  rank_request r;
  r.rid = world_.rid_of(request);
  r.number = world_.number_of(request);
  r.input_tokens = std::max(asked.input_tokens, 1U);
  r.blocks = state.blocks;
  r.max_new_tokens = std::max(asked.output_tokens, 1U);
  if (pool.role != core::pool_role::unified)
    r.bootstrap = core::bootstrap_info{"", 0, world_.room_of(request)};
  seat.engine->add(world_.now, std::move(r), pool.outputs[leg.rank]);
  follow_up(pool_index, leg.rank);
}

void engine_runner::abort(std::uint32_t request, std::uint32_t pool_index) {
  auto& pool = world_.pools[pool_index];
  const auto rank = world_.requests[request].legs[pool_index].rank;
  const auto rid = world_.rid_of(request);
  ++world_.requests[request].attempt; // what the engine still says of it is not heard
  pool.seats[rank].engine->abort(world_.now, rid, pool.outputs[rank]);
  follow_up(pool_index, rank);
}

void engine_runner::follow_up(std::uint32_t pool, std::uint16_t rank) {
  hear(pool, rank);
  schedule(pool, rank);
}

void engine_runner::schedule(std::uint32_t pool_index, std::uint32_t rank) {
  auto& pool = world_.pools[pool_index];
  const auto slot = pool.slot_of(rank);
  auto next = pool.next_event_time(rank);
  if (!next)
    return;
  next = std::max(*next, world_.now);
  auto& scheduled = pool.seats[slot].scheduled;
  if (scheduled <= *next)
    return;
  scheduled = *next;
  world_.events.push(*next, event_kind::engine, pool_index, slot);
}

void engine_runner::drive(std::uint32_t pool_index, std::uint32_t slot) {
  auto& pool = world_.pools[pool_index];
  if (pool.seats[slot].scheduled != world_.now)
    return; // an earlier event took its place
  pool.seats[slot].scheduled = never;
  if (pool.group)
    step_group(pool_index);
  else if (pool.seats[slot].alive)
    step_rank(pool_index, static_cast<std::uint16_t>(slot));
  else
    return;
  schedule(pool_index, slot);
}

void engine_runner::step_group(std::uint32_t pool_index) {
  auto& pool = world_.pools[pool_index];
  steps_before_.clear();
  for (const auto& seat : pool.seats)
    steps_before_.push_back(seat.engine->steps());
  pool.group->step(world_.now, pool.outputs);
  for (std::size_t rank = 0; rank < pool.seats.size(); ++rank) {
    record_step(*pool.seats[rank].engine, steps_before_[rank]);
    hear(pool_index, static_cast<std::uint16_t>(rank));
  }
}

void engine_runner::step_rank(std::uint32_t pool_index, std::uint16_t rank) {
  auto& pool = world_.pools[pool_index];
  auto& engine = *pool.seats[rank].engine;
  const auto before = engine.steps();
  engine.step(world_.now, pool.outputs[rank]);
  record_step(engine, before);
  hear(pool_index, rank);
}

void engine_runner::record_step(const engine_rank_model& engine, std::uint64_t steps_before) {
  if (world_.options.record_steps && engine.steps() != steps_before)
    world_.result.recorded_steps.push_back(engine.last_step());
}

/// A frozen rank is not heard.
void engine_runner::hear(std::uint32_t pool_index, std::uint16_t rank) {
  auto& pool = world_.pools[pool_index];
  auto& said = pool.outputs[rank];
  if (said.empty() || pool.seats[rank].frozen_since != never)
    return;
  progress_.begin(pool_index, rank);
  bool prefilled = false;
  for (const auto& item : said.progress)
    if (world_.is_current(item.number))
      prefilled = (pool_index == stream_pool ? hear_tokens(item, rank) : hear_prefill(item, rank)) || prefilled;
  for (const auto& abort : said.aborts)
    if (world_.is_current(abort.number))
      hear_abort(static_cast<std::uint32_t>(abort.number), pool_index, rank);
  progress_.send();
  hear_kv(said);
  said.clear();
  reports_.sample(pool_index, rank, prefilled);
}

/// What a step of a unified or decode rank meant for one request. True when it ended the prompt.
bool engine_runner::hear_tokens(const request_progress& item, std::uint16_t rank) {
  const auto request = static_cast<std::uint32_t>(item.number);
  auto& state = world_.requests[request];
  auto& result = world_.result.requests[request];
  auto& seat = world_.pools[stream_pool].seats[rank];
  auto& told = progress_.of(world_.front_of(request));
  auto& generated = world_.front_end_of(request).generated[stream_pool][rank];
  generated += item.generated - state.counted;
  state.counted = item.generated;
  const bool first = state.last_token == never;
  if (first) {
    told.first_tokens.push_back(request + 1);
    told.first_cached.push_back(item.cached);
    if (result.first_token_s < 0) {
      result.first_token_s = seconds(world_.now);
      if (!world_.is_pair())
        result.cached = item.cached;
    }
    if (world_.pools[stream_pool].role == core::pool_role::unified)
      seat.prompt_tokens_computed += result.input_tokens - item.cached;
    world_.note(noted::first_token, request, rank);
  } else {
    world_.result.gaps.add(world_.now - state.last_token);
  }
  state.last_token = world_.now;
  result.generated = item.generated;
  if (item.finish != core::finish_reason::none) {
    told.ended.push_back(request + 1);
    told.ended_tokens.push_back(item.generated);
    state.legs[stream_pool].ended = true;
    generated -= state.counted;
    clients_.end(request, item.finish == core::finish_reason::abort);
  }
  return first;
}

/// What a step of a pair's prefill rank meant for one request: its token is not the client's. True when it ended the
/// prompt.
bool engine_runner::hear_prefill(const request_progress& item, std::uint16_t rank) {
  const auto request = static_cast<std::uint32_t>(item.number);
  auto& told = progress_.of(world_.front_of(request));
  if (item.finish == core::finish_reason::none)
    return false;
  told.ended.push_back(request + 1);
  told.ended_tokens.push_back(0);
  world_.requests[request].legs[prefill_pool].ended = true;
  auto& result = world_.result.requests[request];
  result.cached = item.cached;
  world_.pools[prefill_pool].seats[rank].prompt_tokens_computed += result.input_tokens - item.cached;
  return true;
}

void engine_runner::hear_abort(std::uint32_t request, std::uint32_t pool_index, std::uint16_t rank) {
  auto& told = progress_.of(world_.front_of(request));
  told.ended.push_back(request + 1);
  told.ended_tokens.push_back(0);
  ++told.errors;
  auto& state = world_.requests[request];
  auto& leg = state.legs[pool_index];
  if (!leg.ended && pool_index == stream_pool) {
    world_.front_end_of(request).generated[stream_pool][rank] -= state.counted;
    clients_.end(request, true);
  }
  leg.ended = true;
}

/// Decode ranks ask for the KV of a prompt, prefill ranks answer.
void engine_runner::hear_kv(const rank_outputs& said) {
  for (const auto& query : said.queries)
    world_.events.push(world_.now, event_kind::kv_asked, static_cast<std::uint32_t>(query.number),
                       static_cast<std::uint32_t>(query.number >> 32));
  for (const auto& answer : said.answers)
    world_.events.push(world_.now, event_kind::kv_answer, static_cast<std::uint32_t>(answer.query),
                       (answer.ready ? 1U : 0U) + 2 * static_cast<std::uint32_t>(answer.query >> 32));
}

} // namespace rankwise::sim
