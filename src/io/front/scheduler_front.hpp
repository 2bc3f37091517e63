#pragma once

#include "core/base/time.hpp"
#include "core/request/request_intake.hpp"
#include "core/request/stream_sink.hpp"
#include "io/front/front_options.hpp"

#include <tl/expected.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

/// The gRPC front: `sglang.grpc.scheduler.SglangScheduler`, as the smg gateway calls its workers, with the standard
/// health and reflection services beside it. One I/O thread; everything behind it is reached through
/// core::request_intake.
///
///     scheduler_front front{options, intake, clock};   // front is the core::stream_sink of its streams
///     if (auto started = front.start(); !started) ...  // started.error() names the address
///     front.port();
///     front.drain(30s);                                // or stop()
namespace rankwise::io::front {

struct front_counters {
  grpc::server_counters server;
  std::uint64_t chunks = 0;  ///< Chunk messages encoded; tokens / chunks tells how far tokens were merged.
  std::uint64_t tokens = 0;  ///< Tokens handed to clients' connections.
  std::uint64_t invalid = 0; ///< Generate requests refused by the front itself.
  std::uint64_t slow_clients = 0;
  std::uint64_t events_late = 0;         ///< For a stream that had ended here.
  std::uint64_t events_behind_a_gap = 0; ///< Tokens before them never arrived: their streams ended as tokens_lost.
  std::uint64_t events_bad = 0;          ///< Of a sample that is not there, or with a cut outside of its batch.
  std::uint64_t queue_overflows = 0;
};

class scheduler_front final : public core::stream_sink {
 public:
  /// `intake` and `clock` must outlive the front. The intake is called on the front's I/O thread.
  scheduler_front(front_options options, core::request_intake& intake, const core::clock& clock);
  ~scheduler_front() override; ///< stop()

  /// Binds and starts the I/O thread. Error: text for people.
  [[nodiscard]] tl::expected<void, std::string> start();
  [[nodiscard]] std::uint16_t port() const noexcept;

  /// From any thread: health says NOT_SERVING and new Generate calls end as UNAVAILABLE; open ones go on.
  void begin_drain() noexcept;
  /// begin_drain(), GOAWAY, wait for open calls; those left after `timeout` end as UNAVAILABLE. True: none was left.
  bool drain(std::chrono::milliseconds timeout);
  /// From any thread: the timeout of that drain is over now.
  void hurry() noexcept;
  /// End every open call now; each is cancelled at the intake as shutting_down. Idempotent.
  void stop() noexcept;

  void deliver(core::stream_batch&& batch) noexcept override;
  void fail_owner(core::owner_id owner, core::outcome why) noexcept override;

  /// From any thread; the figures of one moment are not taken together.
  [[nodiscard]] front_counters counters() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace rankwise::io::front
