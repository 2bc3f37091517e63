#include "sim/lockstep_group.hpp"

#include <algorithm>

namespace rankwise::sim {

bool lockstep_group::frozen() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const engine_rank_model* rank) { return rank->frozen(); });
}

std::optional<core::timestamp> lockstep_group::next_event_time() const {
  if (frozen()) { // the others wait for it in the next collective
    return std::nullopt;
  }
  std::optional<core::timestamp> earliest = step_end_;
  for (const engine_rank_model* rank : ranks_) {
    // While a common step runs, only the limits of waiting can pass before its end.
    const auto own = step_end_ ? rank->next_timer() : rank->next_event_time();
    if (own) {
      earliest = earliest ? std::min(*earliest, *own) : own;
    }
  }
  return earliest;
}

void lockstep_group::step(core::timestamp now, std::span<rank_outputs> outputs) {
  if (frozen()) {
    return;
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i]->expire(now, outputs[i]);
  }
  if (step_end_ && *step_end_ > now) {
    return;
  }
  const core::timestamp start = step_end_ && now - *step_end_ <= step_length_ ? *step_end_ : now;
  core::duration longest{};
  std::vector<engine_rank_model*> busy;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i]->stepping()) {
      ranks_[i]->finish_step(now, outputs[i]);
    }
    if (const auto length = ranks_[i]->plan_step(outputs[i])) {
      longest = std::max(longest, *length);
      busy.push_back(ranks_[i]);
    }
  }
  step_end_.reset();
  if (busy.empty()) {
    return;
  }
  for (engine_rank_model* rank : busy) {
    rank->begin_step(start, start + longest);
  }
  step_end_ = start + longest;
  step_length_ = longest;
}

} // namespace rankwise::sim
