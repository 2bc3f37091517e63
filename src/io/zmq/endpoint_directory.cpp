#include "io/zmq/endpoint_directory.hpp"

namespace rankwise::io {

endpoint_directory::endpoint_directory(const std::vector<hub_pool_options>& pools)
    : several_ranks_(std::make_unique<std::atomic<bool>[]>(pools.size())), serving_(slots_of(pools)) {
  std::size_t slots = 0;
  for (const auto& pool : pools) {
    slot_base_.push_back(slots);
    ranks_max_.push_back(pool.ranks_max);
    slots += pool.ranks_max;
  }
}

std::size_t endpoint_directory::slots_of(const std::vector<hub_pool_options>& pools) noexcept {
  std::size_t slots = 0;
  for (const auto& pool : pools)
    slots += pool.ranks_max;
  return slots;
}

rank_endpoint_ptr endpoint_directory::find(core::rank_id rank) const {
  if (rank.pool >= slot_base_.size() || rank.rank >= ranks_max_[rank.pool])
    return nullptr;
  const std::lock_guard guard{mutex_};
  return serving_[slot_of(rank)];
}

void endpoint_directory::put(const rank_endpoint_ptr& endpoint) {
  const std::lock_guard guard{mutex_};
  serving_[slot_of(endpoint->id)] = endpoint;
}

void endpoint_directory::remove(const rank_endpoint_ptr& endpoint) {
  const std::lock_guard guard{mutex_};
  auto& serving = serving_[slot_of(endpoint->id)];
  if (serving == endpoint)
    serving.reset();
}

} // namespace rankwise::io
