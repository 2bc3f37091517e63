#include "sim/pool/progress_path.hpp"

#include <algorithm>

namespace rankwise::sim {

void progress_path::begin(std::uint32_t pool, std::uint16_t rank) {
  pool_ = pool;
  rank_ = rank;
  std::fill(of_front_.begin(), of_front_.end(), 0U);
}

core::batch_progress& progress_path::of(std::uint32_t front_end) {
  auto& place = of_front_[front_end];
  if (place == 0) {
    place = take_place() + 1;
    auto& p = on_their_way_[place - 1];
    p.pool = pool_;
    p.progress.rank = {static_cast<std::uint16_t>(pool_), rank_};
    p.progress.epoch = world_.pools[pool_].seats[rank_].epoch;
    p.progress.first_tokens.clear();
    p.progress.first_cached.clear();
    p.progress.ended.clear();
    p.progress.ended_tokens.clear();
    p.progress.errors = 0;
  }
  return on_their_way_[place - 1].progress;
}

std::uint32_t progress_path::take_place() {
  if (free_places_.empty()) {
    on_their_way_.emplace_back();
    return static_cast<std::uint32_t>(on_their_way_.size() - 1);
  }
  const auto index = free_places_.back();
  free_places_.pop_back();
  return index;
}

void progress_path::send() {
  for (std::uint32_t front = 0; front < of_front_.size(); ++front) {
    if (of_front_[front] == 0)
      continue;
    const auto index = of_front_[front] - 1;
    on_their_way_[index].progress.generated_tokens = world_.front_ends[front]->generated[pool_][rank_];
    world_.events.push(world_.now + world_.options.output_delay, event_kind::progress, index, front);
  }
}

void progress_path::deliver(std::uint32_t index, std::uint32_t front_end) {
  auto& controllers = world_.front_ends[front_end]->controllers;
  const auto& [pool, progress] = on_their_way_[index];
  if (progress.epoch == world_.pools[pool].seats[progress.rank.rank].epoch) {
    controllers[pool]->progress(progress, world_.now);
    // The prefill charge goes with the decode leg's first token.
    if (pool == stream_pool && world_.is_pair())
      for (const auto handle : progress.first_tokens)
        controllers[prefill_pool]->release(handle, world_.now);
  }
  free_places_.push_back(index);
}

void progress_path::forget_end_of_prefill(std::uint32_t request) {
  for (auto& [pool, progress] : on_their_way_) {
    auto& ended = progress.ended;
    const auto found = std::find(ended.begin(), ended.end(), core::request_handle{request + 1});
    if (pool != prefill_pool || found == ended.end())
      continue;
    progress.ended_tokens.erase(progress.ended_tokens.begin() + (found - ended.begin()));
    ended.erase(found);
  }
}

} // namespace rankwise::sim
