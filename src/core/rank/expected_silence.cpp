#include "core/rank/expected_silence.hpp"

#include <algorithm>

namespace rankwise::core {

void expected_silence::learn(duration silence, std::uint64_t prefilled_tokens) {
  if (silence < shortest)
    return;
  if (prefilled_tokens >= prefill_tokens_min)
    prefills_.add(static_cast<double>(prefilled_tokens) / to_seconds(silence));
  else
    steps_.add(silence);
}

duration expected_silence::longest_step() const {
  return steps_.count == 0 ? duration{}
                           : *std::max_element(steps_.values.begin(), steps_.values.begin() + steps_.count);
}

double expected_silence::prefill_tokens_per_s() const {
  if (prefills_.count == 0)
    return options_.prefill_tokens_per_s;
  return *std::min_element(prefills_.values.begin(), prefills_.values.begin() + prefills_.count) /
         options_.prefill_margin;
}

duration expected_silence::explained(std::uint64_t prefill_tokens) const {
  const auto step = std::max(to_seconds(options_.floor), options_.step_factor * to_seconds(longest_step()));
  const auto prefill = static_cast<double>(prefill_tokens) / prefill_tokens_per_s();
  // A week is beyond every limit of a request; more would not fit the clock.
  return from_seconds(std::min(step + prefill, 7 * 86'400.0));
}

} // namespace rankwise::core
