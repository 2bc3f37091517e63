#include "core/placement/policies/step_observer.hpp"

#include <algorithm>
#include <cmath>

namespace rankwise::core {

namespace {

constexpr double steps_max = 10'000; // of one prompt
// Short ones say more about when they were noticed than about the engine.
constexpr double tokens_min = 512;

} // namespace

step_observer::lane& step_observer::lane_of(std::uint16_t rank) {
  if (rank >= lanes_.size())
    lanes_.resize(rank + std::size_t{1});
  return lanes_[rank];
}

bool step_observer::idle() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const lane& l) {
    return l.after.decoding <= 0 &&
           std::all_of(l.prompts.begin(), l.prompts.end(), [](const prompt& p) { return p.done; });
  });
}

void step_observer::placed(std::uint16_t rank, request_handle handle, double work_tokens, timestamp at) {
  if (idle())
    begin_ = at;
  lane_of(rank).prompts.push_back({handle, work_tokens, at, false});
}

std::optional<step_seen> step_observer::prefilled(std::uint16_t rank, request_handle handle, timestamp at,
                                                  const step_pace::coefficients& pace) {
  const auto seen = advance(at, pace);
  for (auto& p : lane_of(rank).prompts)
    if (p.handle == handle)
      p.done = true;
  return seen;
}

void step_observer::dropped(std::uint16_t rank, request_handle handle) {
  std::erase_if(lane_of(rank).prompts, [&](const prompt& p) { return p.handle == handle; });
}

std::optional<step_seen> step_observer::output(std::uint16_t rank, timestamp at, const after_output& after,
                                               const step_pace::coefficients& pace) {
  const auto seen = advance(at, pace);
  lane_of(rank).after = after;
  return seen;
}

void step_observer::closed(std::uint16_t rank) {
  lane_of(rank) = {};
}

std::optional<step_seen> step_observer::advance(timestamp at, const step_pace::coefficients& pace) {
  // All outputs of a step come within so much of the shortest step, or of this one, from the first of them on.
  constexpr double of_shortest = 0.3;
  const double of_this = lanes_.size() > 1 ? 0.05 : 0; // a rank alone has one output for each of its decode steps
  constexpr double longest_step_s = 2;                 // beyond that it was rather a pause
  const double this_s = std::min(to_seconds(watched_.end - watched_.begin), longest_step_s);
  if (watched_.seen && to_seconds(at - watched_.end) <= std::max(of_shortest * pace.base_s, of_this * this_s))
    return std::nullopt;
  auto seen = watched_.seen ? end_watched_step() : std::nullopt;
  watched_ = {begin_, at, true, 0, 0, true};
  for (const auto& l : lanes_)
    if (l.after.decoding > 0 &&
        pace.decode_s(l.after.decoding, l.after.kv_tokens) >= pace.decode_s(watched_.decoding, watched_.kv_tokens)) {
      watched_.decoding = l.after.decoding;
      watched_.kv_tokens = l.after.kv_tokens;
      watched_.clear = !l.after.starting || !l.prompts.empty();
    }
  begin_ = at;
  ++steps_;
  return seen;
}

/// What the rank computed of its prompts in one step.
double step_observer::compute(lane& l) const {
  const double chunk = chunk_tokens_of(l.after.chunk_tokens);
  double computed = 0;
  for (auto& p : l.prompts) {
    if (p.at > watched_.begin || computed >= chunk)
      break;
    const double piece = std::min(p.left, chunk - computed);
    p.left -= piece;
    computed += piece;
  }
  return computed;
}

/// Where a rank decodes each step has an output. Else only those have one in which a prompt ended, after as many
/// without as its pieces took.
double step_observer::steps_watched() const {
  if (watched_.decoding > 0)
    return 1;
  double steps = 0;
  for (const auto& l : lanes_) {
    const double chunk = chunk_tokens_of(l.after.chunk_tokens);
    double left = 0;
    for (const auto& p : l.prompts) {
      left += p.left;
      if (p.done)
        steps = std::max(steps, std::clamp(std::ceil(left / chunk), 1.0, steps_max));
    }
  }
  return steps;
}

std::optional<step_seen> step_observer::end_watched_step() {
  const double steps = steps_watched();
  double tokens = 0;
  for (double step = 0; step < steps; ++step) {
    double longest = 0;
    for (auto& l : lanes_)
      longest = std::max(longest, compute(l));
    tokens += longest;
  }
  bool any_done = false;
  for (auto& l : lanes_)
    any_done = std::erase_if(l.prompts, [](const prompt& p) { return p.done; }) > 0 || any_done;
  const double seconds = to_seconds(watched_.end - watched_.begin);
  constexpr double longest_step_s = 60;
  if (seconds <= 0 || seconds > longest_step_s * std::max(steps, 1.0))
    return std::nullopt;
  const bool decoded = watched_.decoding > 0 && tokens <= 0 && !any_done;
  const bool prefilled = tokens >= tokens_min && any_done;
  if (!watched_.clear || (!decoded && !prefilled))
    return std::nullopt;
  return step_seen{seconds, steps, watched_.decoding, watched_.kv_tokens, tokens};
}

} // namespace rankwise::core
