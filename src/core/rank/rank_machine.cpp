#include "core/rank/rank_machine.hpp"

#include <utility>

namespace rankwise::core {

std::string_view to_string(rank_state s) noexcept {
  switch (s) {
  case rank_state::joining:
    return "joining";
  case rank_state::ready:
    return "ready";
  case rank_state::suspect:
    return "suspect";
  case rank_state::down:
    return "down";
  case rank_state::draining:
    return "draining";
  case rank_state::parked:
    return "parked";
  case rank_state::drained:
    return "drained";
  case rank_state::removed:
    return "removed";
  }
  return "unknown";
}

rank_transition rank_machine::go(rank_state to, std::string_view cause) {
  rank_transition t{state_, to, epoch_, std::string{cause}};
  state_ = to;
  return t;
}

rank_transition rank_machine::open(rank_epoch epoch, timestamp now, std::string_view cause) {
  epoch_ = epoch;
  quiet_since_ = now;
  was_outstanding_ = false;
  hangs_ = false;
  silence_ = expected_silence{timing_.silence};
  ended_silence_ = {};
  // Nothing of the old epoch counts any more, so a rank that was being drained is empty.
  return go(drain_wanted_ ? rank_state::drained : rank_state::ready, cause);
}

std::optional<rank_transition> rank_machine::on_hello(rank_epoch epoch, std::string_view cause) {
  if (epoch <= epoch_)
    return std::nullopt;
  epoch_ = epoch;
  was_outstanding_ = false;
  drain_wanted_ = false; // a new process is what one drains a rank for
  return go(rank_state::joining, cause);
}

std::optional<rank_transition> rank_machine::on_registered(rank_epoch epoch, timestamp now) {
  if (epoch < epoch_ || (epoch == epoch_ && state_ != rank_state::joining))
    return std::nullopt;
  return open(epoch, now, "registered");
}

std::optional<rank_transition> rank_machine::on_lost(rank_epoch epoch, std::string_view cause) {
  if (epoch != epoch_ || state_ == rank_state::down)
    return std::nullopt;
  return go(rank_state::down, cause);
}

std::optional<rank_transition> rank_machine::on_reconnected(rank_epoch epoch, timestamp now) {
  if (epoch <= epoch_)
    return std::nullopt;
  return open(epoch, now, "reconnected");
}

std::optional<rank_transition> rank_machine::on_restored(rank_epoch epoch) {
  if (epoch <= epoch_)
    return std::nullopt;
  epoch_ = epoch;
  return go(rank_state::down, "the node was restarted; its engine has not reconnected yet");
}

std::optional<rank_transition> rank_machine::on_drain(timestamp deadline) {
  drain_wanted_ = true;
  drain_deadline_ = deadline;
  if (state_ != rank_state::ready && state_ != rank_state::suspect)
    return std::nullopt; // from the next epoch on, or already
  return go(rank_state::draining, "an operator drains it");
}

std::optional<rank_transition> rank_machine::on_undrain(timestamp now) {
  drain_wanted_ = false;
  if (state_ != rank_state::draining && state_ != rank_state::drained)
    return std::nullopt;
  quiet_since_ = now;
  return go(rank_state::ready, "an operator ended its drain");
}

std::optional<rank_transition> rank_machine::on_drain_progress(timestamp now, std::uint32_t requests) {
  if (state_ != rank_state::draining)
    return std::nullopt;
  if (requests == 0)
    return go(rank_state::drained, "its last request ended");
  if (now >= drain_deadline_)
    return go(rank_state::drained, "the deadline of its drain passed, requests left: " + std::to_string(requests));
  return std::nullopt;
}

std::optional<rank_transition> rank_machine::on_tick(timestamp now, const outstanding& work, timestamp last_output) {
  hangs_ = false;
  if (work.requests == 0) {
    was_outstanding_ = false;
    ended_silence_ = {};
    if (state_ == rank_state::suspect)
      return go(rank_state::ready, "nothing outstanding");
    return std::nullopt;
  }
  if (!was_outstanding_) {
    was_outstanding_ = true;
    quiet_since_ = now; // silence is counted from when there was something to say
    prefilled_before_ = work.prefilled_tokens;
  }
  // One tick after its end: the controller hears of the tokens that ended a silence later than the link does.
  if (const auto ended = std::exchange(ended_silence_, {}); ended > duration{}) {
    if (work.prefilled_tokens >= prefilled_before_) // else it counts anew
      silence_.learn(ended, work.prefilled_tokens - prefilled_before_);
    prefilled_before_ = work.prefilled_tokens;
  }
  if (last_output > quiet_since_) {
    // Without a tick in the midst of it there may have been many short ones.
    if (2 * (silent_at_ - quiet_since_) >= last_output - quiet_since_)
      ended_silence_ = last_output - quiet_since_;
    else
      prefilled_before_ = work.prefilled_tokens;
    quiet_since_ = last_output;
    if (state_ == rank_state::suspect)
      return go(rank_state::ready, "heard again");
  }
  silent_at_ = now;
  const auto explained = silence_.explained(work.prefill_tokens);
  const auto silence = now - quiet_since_;
  hangs_ = is_linked() && to_seconds(silence) > timing_.hung_factor * to_seconds(explained);
  if (state_ == rank_state::ready && silence > explained) {
    const auto seconds = [](duration d) {
      return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count());
    };
    return go(rank_state::suspect, "silent for " + seconds(silence) + " s with " + std::to_string(work.requests) +
                                       " requests and " + std::to_string(work.prefill_tokens) +
                                       " prompt tokens to do, which explain " + seconds(explained) + " s");
  }
  return std::nullopt;
}

} // namespace rankwise::core
