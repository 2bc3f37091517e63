#include "sim/pool/run_figures.hpp"

#include <algorithm>

namespace rankwise::sim {

void run_figures::sample() {
  auto& series = world_.result.series;
  series.at_s.push_back(seconds(world_.now));
  const auto& seats = world_.pools[stream_pool].seats;
  const auto capacity = static_cast<double>(world_.options.engine.kv_capacity_tokens);
  double fullest = 0;
  double sum = 0;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto share =
        seats[rank].alive ? static_cast<double>(seats[rank].engine->load().kv_used_tokens) / capacity : 0.0;
    series.kv_share[rank].push_back(share);
    fullest = std::max(fullest, share);
    sum += share;
  }
  for (std::size_t rank = 0; rank < series.queue.size(); ++rank)
    series.queue[rank].push_back(world_.pools[world_.first_pool()].seats[rank].engine->load().num_waiting);
  std::size_t held = 0;
  for (const auto& front : world_.front_ends)
    held += front->held.size();
  series.held.push_back(static_cast<double>(held));
  const auto mean = sum / static_cast<double>(seats.size());
  // Only while requests arrive: the end of a run has ranks with one request left.
  if (mean > 0.01 && world_.arrived < world_.load.requests.size()) {
    kv_ratio_sum_ += fullest / mean;
    ++kv_ratio_count_;
  }
}

void run_figures::finish() {
  auto& result = world_.result;
  for (const auto& front : world_.front_ends) {
    result.held_left += front->held.size();
    for (const auto& controller : front->controllers)
      result.charges_left += controller->charge_count();
  }
  for (const auto& pool : world_.pools)
    for (const auto& seat : pool.seats)
      world_.count_work_of(*seat.engine);
  result.busiest_to_mean_kv = kv_ratio_count_ == 0 ? 1 : kv_ratio_sum_ / static_cast<double>(kv_ratio_count_);
  result.busiest_to_mean_work = busiest_to_mean_work();
  result.prefix_hit_share = prefix_hit_share();
}

double run_figures::busiest_to_mean_work() const {
  const auto& seats = world_.pools[world_.first_pool()].seats;
  std::uint64_t all = 0;
  std::uint64_t most = 0;
  for (const auto& seat : seats) {
    all += seat.prompt_tokens_computed;
    most = std::max(most, seat.prompt_tokens_computed);
  }
  return all == 0 ? 1 : static_cast<double>(most) * static_cast<double>(seats.size()) / static_cast<double>(all);
}

double run_figures::prefix_hit_share() const {
  std::uint64_t prompts = 0;
  std::uint64_t cached = 0;
  for (const auto& r : world_.result.requests) {
    prompts += r.input_tokens;
    cached += r.cached;
  }
  return prompts == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(prompts);
}

} // namespace rankwise::sim
