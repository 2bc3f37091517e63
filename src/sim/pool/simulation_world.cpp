#include "sim/pool/simulation_world.hpp"

#include "sim/pool/oracle.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <xxhash.h>

namespace rankwise::sim {

namespace {

simulation_options filled_in(simulation_options options, const workload& load) {
  if (options.prefill_ranks == 0)
    options.prefill_ranks = options.ranks;
  if (options.max_new_tokens == 0)
    for (const auto& r : load.requests)
      options.max_new_tokens = std::max(options.max_new_tokens, r.output_tokens);
  return options;
}

} // namespace

simulation_world::simulation_world(const workload& played, const simulation_options& asked)
    : load(played), options(filled_in(asked, played)), random(asked.seed) {
  make_pools();
  make_front_ends();
  requests.resize(load.requests.size());
  result.requests.resize(load.requests.size());
  result.placed.resize(options.ranks);
  result.series.kv_share.resize(options.ranks);
  result.series.queue.resize(pools[first_pool()].seats.size());
}

void simulation_world::make_pools() {
  const auto add = [this](core::pool_role role, std::size_t ranks) {
    const auto seed = options.seed * 1000 + pools.size() * 100'000;
    pools.push_back(make_simulated_pool(engine_of(role), ranks, options.lockstep, seed));
  };
  add(options.shape == pool_shape::unified ? core::pool_role::unified : core::pool_role::decode, options.ranks);
  if (options.shape == pool_shape::pair)
    add(core::pool_role::prefill, options.prefill_ranks);
}

void simulation_world::make_front_ends() {
  for (std::uint32_t i = 0; i < std::max(options.front_ends, 1U); ++i) {
    auto& front = *front_ends.emplace_back(std::make_unique<front_end>(options.pool));
    for (std::uint32_t pool = 0; pool < pools.size(); ++pool) {
      front.controllers.push_back(make_controller(i, pool));
      front.generated.emplace_back(pools[pool].seats.size());
    }
  }
}

std::unique_ptr<core::pool_controller> simulation_world::make_controller(std::uint32_t front_index,
                                                                         std::uint32_t pool_index) {
  auto pool = options.pool;
  pool.index = static_cast<std::uint16_t>(pool_index);
  pool.role = pools[pool_index].role;
  pool.ranks_max = static_cast<std::uint16_t>(std::max<std::size_t>(pools[pool_index].seats.size(), 1));
  pool.requests_in_flight_max = std::numeric_limits<std::uint32_t>::max();
  pool.tokens_in_flight_max = std::numeric_limits<std::uint64_t>::max() / 4;
  pool.tuning.seed = options.seed + front_index * 7919 + pool_index;
  pool.tuning.lockstep = options.lockstep;
  auto rule = options.make_policy ? options.make_policy(pool.tuning) : nullptr;
  if (options.oracle) {
    auto tuning = pool.tuning;
    tuning.headroom_progress = false; // the true state has it
    rule = std::make_unique<oracle>(core::make_policy(pool.policy, tuning), pools[pool_index]);
  }
  return std::make_unique<core::pool_controller>(
      pool, std::move(rule),
      options.recorder ? core::decision_recorders{options.recorder(front_index, pool_index)}
                       : core::decision_recorders{});
}

engine_rank_options simulation_world::engine_of(core::pool_role role) const {
  auto engine = options.engine;
  engine.role = role;
  engine.numbers_only = true;
  engine.pd_wait_s = 1e9; // a simulated client has patience; waiting shows as waiting
  return engine;
}

void simulation_world::end_way(std::uint32_t request, std::uint32_t pool) {
  auto& leg = requests[request].legs[pool];
  pools[pool].seats[leg.rank].end_way(load.requests[request].input_tokens);
  leg.on_the_way = false;
}

void simulation_world::note(std::uint64_t what, std::uint64_t a, std::uint64_t b) {
  const std::uint64_t words[] = {what, a, b, static_cast<std::uint64_t>(now.time_since_epoch().count())};
  result.event_hash = XXH3_64bits_withSeed(words, sizeof words, result.event_hash);
}

void simulation_world::count_work_of(const engine_rank_model& engine) {
  result.steps += engine.steps();
  result.retractions += engine.retractions();
}

} // namespace rankwise::sim
