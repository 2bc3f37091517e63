#include "core/rank_machine.hpp"

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
  }
  return "unknown";
}

rank_transition rank_machine::go(rank_state to, std::string_view cause) {
  rank_transition t{state_, to, epoch_, std::string{cause}};
  state_ = to;
  return t;
}

std::optional<rank_transition> rank_machine::on_hello(rank_epoch epoch, std::string_view cause) {
  if (epoch <= epoch_)
    return std::nullopt;
  epoch_ = epoch;
  was_outstanding_ = false;
  return go(rank_state::joining, cause);
}

std::optional<rank_transition> rank_machine::on_registered(rank_epoch epoch, timestamp now) {
  if (epoch < epoch_ || (epoch == epoch_ && state_ != rank_state::joining))
    return std::nullopt;
  epoch_ = epoch;
  quiet_since_ = now;
  was_outstanding_ = false;
  return go(rank_state::ready, "registered");
}

std::optional<rank_transition> rank_machine::on_lost(rank_epoch epoch, std::string_view cause) {
  if (epoch != epoch_ || state_ == rank_state::down)
    return std::nullopt;
  return go(rank_state::down, cause);
}

std::optional<rank_transition> rank_machine::on_reconnected(rank_epoch epoch, timestamp now) {
  if (epoch <= epoch_)
    return std::nullopt;
  epoch_ = epoch;
  quiet_since_ = now;
  was_outstanding_ = false;
  return go(rank_state::ready, "reconnected");
}

std::optional<rank_transition> rank_machine::on_tick(timestamp now, std::uint32_t outstanding,
                                                     std::uint64_t prefill_tokens, timestamp last_output) {
  if (outstanding == 0) {
    was_outstanding_ = false;
    if (state_ == rank_state::suspect)
      return go(rank_state::ready, "nothing outstanding");
    return std::nullopt;
  }
  if (!was_outstanding_) {
    was_outstanding_ = true;
    quiet_since_ = now; // silence is counted from when there was something to say
  }
  if (last_output > quiet_since_) {
    quiet_since_ = last_output;
    if (state_ == rank_state::suspect)
      return go(rank_state::ready, "heard again");
  }
  const auto explained = duration{
      static_cast<duration::rep>(static_cast<double>(prefill_tokens) / timing_.prefill_tokens_per_s_min * 1e9)};
  if (state_ == rank_state::ready && now - quiet_since_ > timing_.suspect_after + explained)
    return go(rank_state::suspect, "silent while work is outstanding");
  return std::nullopt;
}

} // namespace rankwise::core
