#include "sim/pool/report_path.hpp"

namespace rankwise::sim {

void report_path::sample(std::uint32_t pool, std::uint16_t rank, bool prefilled) {
  auto& seat = world_.pools[pool].seats[rank];
  const auto& path = world_.options.load_path;
  if (path.every_steps == 0 || path.silent_rank == rank || !is_due(seat, prefilled))
    return;
  seat.sampled_at = world_.now;
  seat.sampled_step = seat.engine->steps();
  if (path.loss > 0 && world_.random.uniform() < path.loss)
    return;
  const auto load = seat.engine->load();
  auto delay = core::to_seconds(path.delay);
  if (path.jitter > 0)
    delay *= world_.random.uniform(1 - path.jitter, 1 + path.jitter);
  const auto index = take_place();
  auto& p = on_their_way_[index];
  p.pool = pool;
  p.report.rank = {static_cast<std::uint16_t>(pool), rank};
  p.report.epoch = seat.epoch;
  p.report.sequence = ++seat.report_sequence;
  p.report.num_running = load.num_running;
  p.report.num_waiting = load.num_waiting;
  p.report.kv_used_tokens =
      load.kv_used_tokens + (path.counts_waiting_tokens ? seat.engine->waiting_tokens() : std::uint64_t{0});
  p.report.kv_total_tokens = load.kv_total_tokens;
  world_.events.push(world_.now + duration_of(delay), event_kind::report, index);
}

bool report_path::is_due(const rank_seat& seat, bool prefilled) const {
  const auto& path = world_.options.load_path;
  if (path.on_prefill && prefilled)
    return true;
  return world_.now - seat.sampled_at >= path.period && seat.engine->steps() - seat.sampled_step >= path.every_steps;
}

std::uint32_t report_path::take_place() {
  if (free_places_.empty()) {
    on_their_way_.emplace_back();
    return static_cast<std::uint32_t>(on_their_way_.size() - 1);
  }
  const auto index = free_places_.back();
  free_places_.pop_back();
  return index;
}

void report_path::deliver(std::uint32_t index) {
  ++world_.result.reports_delivered;
  auto& p = on_their_way_[index];
  p.report.received_at = world_.now;
  for (const auto& front : world_.front_ends)
    front->controllers[p.pool]->report(p.report);
  free_places_.push_back(index);
}

} // namespace rankwise::sim
