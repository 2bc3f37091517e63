#include "core/request/history.hpp"

namespace rankwise::core {

std::string_view to_string(history_kind k) noexcept {
  switch (k) {
  case history_kind::accepted:
    return "accepted";
  case history_kind::placed:
    return "placed";
  case history_kind::tokens:
    return "tokens";
  case history_kind::finished:
    return "finished";
  case history_kind::outcome:
    return "outcome";
  }
  return "unknown";
}

void history_checker::violation(const history_event& event, std::string_view what) {
  if (violations_.size() < violations_max)
    violations_.push_back("stream " + std::to_string(event.stream) + " sample " + std::to_string(event.sample) + ": " +
                          std::string{what});
}

void history_checker::record(const history_event& event) noexcept {
  auto& stream = streams_[event.stream];
  auto& sample = stream.samples[event.sample];
  if (stream.ended)
    violation(event, std::string{to_string(event.kind)} + " after the outcome");
  switch (event.kind) {
  case history_kind::accepted:
    if (stream.accepted)
      violation(event, "accepted twice");
    stream.accepted = true;
    ++accepted_;
    break;
  case history_kind::placed:
    if (sample.next_index != 0)
      violation(event, "placed again after its first token");
    if (sample.placed && event.attempt <= sample.attempt)
      violation(event, "placed twice under one attempt");
    sample.placed = true;
    sample.handle = event.handle;
    sample.attempt = event.attempt;
    sample.rank = event.rank;
    sample.epoch = event.epoch;
    break;
  case history_kind::tokens:
    if (!sample.placed)
      violation(event, "tokens before a placement");
    else if (event.rank != sample.rank || event.epoch != sample.epoch || event.attempt != sample.attempt)
      violation(event, "tokens from rank " + std::to_string(event.rank.rank) + " epoch " + std::to_string(event.epoch) +
                           " attempt " + std::to_string(event.attempt) + ", placed on rank " +
                           std::to_string(sample.rank.rank) + " epoch " + std::to_string(sample.epoch) + " attempt " +
                           std::to_string(sample.attempt));
    if (sample.finished)
      violation(event, "tokens after the sample was complete");
    if (event.first_index != sample.next_index)
      violation(event, "token " + std::to_string(event.first_index) + " where " + std::to_string(sample.next_index) +
                           " was due");
    sample.next_index = event.first_index + event.count;
    break;
  case history_kind::finished:
    if (sample.finished)
      violation(event, "complete twice");
    sample.finished = true;
    break;
  case history_kind::outcome:
    if (!stream.accepted && event.ended_as != outcome_kind::refused)
      violation(event, "an outcome without having been accepted");
    if (stream.accepted && event.ended_as == outcome_kind::refused)
      violation(event, "refused after having been accepted");
    stream.ended = true;
    if (stream.accepted)
      ++ended_;
    if (event.ended_as == outcome_kind::completed)
      for (const auto& [number, each] : stream.samples)
        if (each.placed && !each.finished)
          violation(event, "completed while sample " + std::to_string(number) + " was not");
    break;
  }
}

void history_checker::finish() {
  for (const auto& [id, stream] : streams_)
    if (stream.accepted && !stream.ended) {
      history_event event;
      event.stream = id;
      violation(event, "accepted and never ended");
    }
}

} // namespace rankwise::core
