#include "sim/pool/kv_handover.hpp"

namespace rankwise::sim {

void kv_handover::asked(std::uint32_t request, std::uint32_t attempt) {
  const auto& state = world_.requests[request];
  if (state.attempt != attempt)
    return;
  if (world_.is_pair()) {
    const auto rank = state.legs[prefill_pool].rank;
    world_.pools[prefill_pool].seats[rank].engine->query_kv(world_.now, world_.room_of(request),
                                                            world_.number_of(request));
    engines_.schedule(prefill_pool, rank);
  } else {
    const auto rank = state.legs[stream_pool].rank;
    world_.pools[stream_pool].seats[rank].engine->kv_arrived(world_.now, world_.rid_of(request));
    engines_.schedule(stream_pool, rank);
  }
}

void kv_handover::answered(std::uint32_t request, std::uint32_t attempt, bool ready) {
  const auto& state = world_.requests[request];
  if (state.attempt != attempt)
    return;
  auto& pool = world_.pools[stream_pool];
  const auto rank = state.legs[stream_pool].rank;
  const auto rid = world_.rid_of(request);
  if (ready)
    pool.seats[rank].engine->kv_arrived(world_.now, rid);
  else
    pool.seats[rank].engine->kv_failed(world_.now, rid, "the prefill leg failed", pool.outputs[rank]);
  engines_.follow_up(stream_pool, rank);
}

} // namespace rankwise::sim
