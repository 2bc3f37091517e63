#include "io/front/generate_call.hpp"

#include "io/front/outcome_status.hpp"
#include "io/front/sglang_scheduler.pb.h"

namespace rankwise::io::front {

namespace {

core::failure failure_of(grpc::cancel_reason reason) noexcept {
  switch (reason) {
  case grpc::cancel_reason::deadline:
    return core::failure::deadline_exceeded;
  case grpc::cancel_reason::slow_client:
    return core::failure::slow_client;
  case grpc::cancel_reason::shutting_down:
    return core::failure::shutting_down;
  case grpc::cancel_reason::client_reset:
  case grpc::cancel_reason::connection_closed:
  case grpc::cancel_reason::protocol_error:
  case grpc::cancel_reason::internal_error:
    return core::failure::client_cancelled;
  }
  return core::failure::client_cancelled;
}

std::string_view finish_name(core::finish_reason reason) noexcept {
  switch (reason) {
  case core::finish_reason::length:
    return "length";
  case core::finish_reason::abort:
    return "abort";
  case core::finish_reason::none:
  case core::finish_reason::stop:
    return "stop";
  }
  return "stop";
}

void append(const ::google::protobuf::MessageLite& message, std::string& out) {
  const auto size = message.ByteSizeLong();
  const auto before = out.size();
  out.resize(before + size);
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(out.data() + before));
}

} // namespace

generate_call::generate_call(generate_shared& shared, grpc::call& call, std::string rid, std::uint32_t samples,
                             bool stream)
    : shared_(shared), call_(call), next_(shared.first), rid_(std::move(rid)), samples_(samples), stream_(stream) {
  if (next_ != nullptr) {
    next_->previous_ = this;
  }
  shared_.first = this;
}

generate_call::~generate_call() {
  (previous_ != nullptr ? previous_->next_ : shared_.first) = next_;
  if (next_ != nullptr) {
    next_->previous_ = previous_;
  }
}

void generate_call::on_event(const core::stream_event& event, const core::stream_batch& batch) {
  if (ended_) {
    shared_.events_late.add();
    return;
  }
  if (event.outcome_index != core::stream_event::no_index) {
    end(event.outcome_index < batch.outcomes.size()
            ? batch.outcomes[event.outcome_index]
            : core::outcome{core::outcome_kind::failed, core::failure::engine_error, "the outcome is missing", 0});
    return;
  }
  const bool known = event.sample < samples_.size() && event.token_offset <= batch.tokens.size() &&
                     event.token_count <= batch.tokens.size() - event.token_offset;
  if (!known || samples_[event.sample].finish != core::finish_reason::none) {
    shared_.events_bad.add();
    return;
  }
  auto& s = samples_[event.sample];
  if (event.completion_tokens > s.ids.size() + event.token_count) {
    shared_.events_behind_a_gap.add();
    shared_.intake->cancel(stream(), owner_, core::failure::tokens_lost);
    end({core::outcome_kind::failed, core::failure::tokens_lost,
         std::to_string(event.completion_tokens - s.ids.size() - event.token_count) + " tokens never arrived here", 0});
    return;
  }
  if (event.token_count > 0) {
    // Never negative: they come from the engine's vocabulary, and the wire's codec has checked them.
    const auto* from = reinterpret_cast<const std::uint32_t*>(batch.tokens.data()) + event.token_offset;
    s.ids.insert(s.ids.end(), from, from + event.token_count);
    tokens_unsent_ += event.token_count;
  }
  s.prompt_tokens = event.prompt_tokens;
  s.completion_tokens = event.completion_tokens;
  s.cached_tokens = event.cached_tokens;
  if (event.finish != core::finish_reason::none) {
    s.finish = event.finish;
    s.matched_token = event.matched_token;
    if (event.matched_string_index < batch.matched_strings.size()) {
      s.matched_string = batch.matched_strings[event.matched_string_index];
    }
    ++finished_;
    ended_ = finished_ == samples_.size();
  }
  // A client that takes nothing is told so only while it is asked to take something.
  if (stream_ && !ended_ && tokens_unsent_ > shared_.tokens_unsent_max) {
    shared_.slow_clients.add();
    ended_ = true;
    shared_.intake->cancel(stream(), owner_, core::failure::slow_client);
    call_.end_now(to_status({core::outcome_kind::cancelled, core::failure::slow_client,
                             std::to_string(tokens_unsent_) + " tokens wait for the client, the limit is " +
                                 std::to_string(shared_.tokens_unsent_max),
                             0}));
    return;
  }
  if (stream_ || event.finish != core::finish_reason::none) {
    call_.resume();
  }
}

void generate_call::end(const core::outcome& why) {
  if (ended_) {
    return;
  }
  ended_ = true;
  failed_ = true;
  status_ = to_status(why);
  call_.resume();
}

void generate_call::encode_chunk(std::uint32_t index, sample& s, std::string& out) {
  auto& message = *shared_.chunk;
  message.set_request_id(rid_);
  auto& chunk = *message.mutable_chunk();
  auto& ids = *chunk.mutable_token_ids();
  const auto count = s.ids.size() - s.sent;
  ids.Clear();
  ids.Add(s.ids.begin() + static_cast<std::ptrdiff_t>(s.sent), s.ids.end());
  chunk.set_prompt_tokens(s.prompt_tokens);
  chunk.set_completion_tokens(s.completion_tokens);
  chunk.set_cached_tokens(s.cached_tokens);
  chunk.set_index(index);
  append(message, out);
  tokens_unsent_ -= count;
  s.sent = s.ids.size();
  shared_.chunks.add();
  shared_.tokens.add(count);
}

void generate_call::encode_complete(std::uint32_t index, sample& s, std::string& out) {
  auto& message = *shared_.complete;
  message.set_request_id(rid_);
  auto& complete = *message.mutable_complete();
  complete.Clear();
  complete.mutable_output_ids()->Add(s.ids.begin(), s.ids.end());
  const auto finish = finish_name(s.finish);
  complete.set_finish_reason(finish.data(), finish.size());
  complete.set_prompt_tokens(s.prompt_tokens);
  complete.set_completion_tokens(s.completion_tokens);
  complete.set_cached_tokens(s.cached_tokens);
  complete.set_index(index);
  if (!s.matched_string.empty()) {
    complete.set_matched_stop_str(s.matched_string);
  } else if (s.matched_token >= 0) {
    complete.set_matched_token_id(static_cast<std::uint32_t>(s.matched_token));
  }
  append(message, out);
  shared_.tokens.add(s.ids.size() - s.sent);
  tokens_unsent_ -= s.ids.size() - s.sent;
  s.sent = s.ids.size();
  s.complete_sent = true;
  std::vector<std::uint32_t>{}.swap(s.ids);
  s.sent = 0;
}

grpc::pull_result generate_call::pull(std::string& out, grpc::status& end) {
  const auto count = static_cast<std::uint32_t>(samples_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto index = cursor_ + i < count ? cursor_ + i : cursor_ + i - count;
    auto& s = samples_[index];
    if (stream_ && s.sent < s.ids.size()) {
      encode_chunk(index, s, out);
    } else if (s.finish != core::finish_reason::none && !s.complete_sent) {
      encode_complete(index, s, out);
    } else {
      continue;
    }
    const bool more = s.finish != core::finish_reason::none && !s.complete_sent;
    cursor_ = more ? index : (index + 1 < count ? index + 1 : 0);
    return grpc::pull_result::message;
  }
  if (!ended_) {
    return grpc::pull_result::nothing_now;
  }
  end = failed_ ? status_ : grpc::status{};
  return grpc::pull_result::finished;
}

void generate_call::on_cancel(grpc::cancel_reason reason) noexcept {
  if (!ended_) {
    ended_ = true;
    if (reason == grpc::cancel_reason::slow_client) {
      shared_.slow_clients.add();
    }
    shared_.intake->cancel(stream(), owner_, failure_of(reason));
  }
}

} // namespace rankwise::io::front
