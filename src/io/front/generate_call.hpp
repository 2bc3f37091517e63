#pragma once

#include "core/request/request_intake.hpp"
#include "core/request/stream_sink.hpp"
#include "io/grpc/call.hpp"
#include "io/grpc/counter.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sglang::grpc::scheduler {
class GenerateResponse;
}

/// The client's side of one Generate: collects what arrives, hands it out when the connection can take it.
namespace rankwise::io::front {

class generate_call;

/// What all Generate calls of a front share. I/O thread only, but for reading the counters.
struct generate_shared {
  core::request_intake* intake = nullptr;
  std::uint32_t tokens_unsent_max = 0;
  ::sglang::grpc::scheduler::GenerateResponse* chunk = nullptr;    ///< Reused for every chunk that is encoded.
  ::sglang::grpc::scheduler::GenerateResponse* complete = nullptr; ///< Likewise for completes.
  generate_call* first = nullptr;                                  ///< List of all open calls.
  grpc::counter slow_clients;
  grpc::counter events_late;         ///< For a stream that is not open any more.
  grpc::counter events_behind_a_gap; ///< Tokens before them never arrived, by the count that came with them.
  grpc::counter events_bad;          ///< Of a sample that does not exist, or behind the end of its sample.
  grpc::counter chunks;
  grpc::counter tokens;
};

class generate_call final : public grpc::call_handler {
 public:
  generate_call(generate_shared& shared, grpc::call& call, std::string rid, std::uint32_t samples, bool stream);
  ~generate_call() override;

  /// `batch` is the one that `event` is in.
  void on_event(const core::stream_event& event, const core::stream_batch& batch);
  /// Have what on_event() touches in the cache soon: first the object, then what it points to.
  void prefetch_self() const noexcept {
    __builtin_prefetch(this);
    __builtin_prefetch(reinterpret_cast<const char*>(this) + 64);
    __builtin_prefetch(reinterpret_cast<const char*>(this) + 128);
  }
  void prefetch_rest() const noexcept {
    __builtin_prefetch(&call_);
    __builtin_prefetch(samples_.data());
    __builtin_prefetch(reinterpret_cast<const char*>(samples_.data()) + 64);
  }
  /// The stream ends with `why` once what was collected is sent.
  void end(const core::outcome& why);

  [[nodiscard]] core::stream_id stream() const noexcept { return call_.id(); }
  /// Which RequestManager has the request; told once, right after it was submitted.
  void belongs_to(core::owner_id owner) noexcept { owner_ = owner; }
  [[nodiscard]] core::owner_id owner() const noexcept { return owner_; }
  [[nodiscard]] generate_call* next() const noexcept { return next_; }
  /// The node behind the intake has ended this stream, or was told to.
  [[nodiscard]] bool ended() const noexcept { return ended_; }

  grpc::pull_result pull(std::string& out, grpc::status& end) override;
  void on_cancel(grpc::cancel_reason reason) noexcept override;

 private:
  struct sample {
    std::vector<std::uint32_t>
        ids; ///< All of them, because the last message repeats them; `sent` cuts off the new ones.
    std::size_t sent = 0;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t completion_tokens = 0;
    std::uint32_t cached_tokens = 0;
    core::finish_reason finish = core::finish_reason::none;
    std::int64_t matched_token = -1;
    std::string matched_string;
    bool complete_sent = false;
  };

  void encode_chunk(std::uint32_t index, sample& s, std::string& out);
  void encode_complete(std::uint32_t index, sample& s, std::string& out);

  generate_shared& shared_;
  grpc::call& call_;
  generate_call* previous_ = nullptr;
  generate_call* next_ = nullptr;
  std::string rid_;
  std::vector<sample> samples_;
  std::uint32_t cursor_ = 0;   ///< Where pull looks first, so that no sample waits for the others.
  std::uint32_t finished_ = 0; ///< Samples whose finish has arrived.
  std::size_t tokens_unsent_ = 0;
  grpc::status status_; ///< With which the stream ends when `ended_` came with an outcome.
  core::owner_id owner_ = 0;
  const bool stream_;
  bool ended_ = false;
  bool failed_ = false;
};

} // namespace rankwise::io::front
