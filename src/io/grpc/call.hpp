#pragma once

#include "io/grpc/status.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// One gRPC call as a method's code sees it. Everything here happens on the server's I/O thread only.
namespace rankwise::io::grpc {

/// Never reused while a server lives; 0 is "none".
using call_id = std::uint64_t;

/// Why a call ended before its handler finished it.
enum class cancel_reason : std::uint8_t {
  client_reset = 0,      ///< The client sent RST_STREAM.
  connection_closed = 1, ///< The client's connection is gone.
  deadline = 2,          ///< `grpc-timeout` has passed.
  slow_client = 3,       ///< The client's connection or stream took no byte for `write_stall_max`.
  shutting_down = 4,     ///< `stop()`, or the drain ran out of time.
  protocol_error = 5,    ///< The client broke HTTP/2 or gRPC framing.
  internal_error = 6,    ///< The handler threw.
};

[[nodiscard]] std::string_view to_string(cancel_reason reason) noexcept;

class call {
 public:
  [[nodiscard]] virtual call_id id() const noexcept = 0;
  [[nodiscard]] virtual std::string_view path() const noexcept = 0;
  /// "ipv4:127.0.0.1:40000" or "ipv6:[::1]:40000".
  [[nodiscard]] virtual std::string_view peer() const noexcept = 0;
  /// First value of a custom metadata key (lower case); nullopt: not sent.
  [[nodiscard]] virtual std::optional<std::string_view> metadata(std::string_view key) const noexcept = 0;
  /// What is left of the client's `grpc-timeout`; nullopt: it sets none. The server ends the call then by itself.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> time_left() const noexcept = 0;

  /// There is something to pull. Cheap, and cheaper when called again before the pull; never pulls by itself.
  virtual void resume() noexcept = 0;

  /// End the call without waiting for the client to read: with `why` in the trailers when they can be sent at once,
  /// else by RST_STREAM with the nearest code. The handler is neither pulled nor told of a cancel after this.
  virtual void end_now(status why) = 0;

 protected:
  call() = default;
  call(const call&) = default;
  call& operator=(const call&) = default;
  ~call() = default;
};

enum class pull_result : std::uint8_t {
  message,     ///< One message was appended to `out`; pull again.
  nothing_now, ///< Nothing to send until `call::resume()`.
  finished,    ///< The call ends with `end`; `out` is untouched.
};

/// The server's side of one call, owned by the server from its creation to the call's end.
class call_handler {
 public:
  call_handler() = default;
  call_handler(const call_handler&) = delete;
  call_handler& operator=(const call_handler&) = delete;
  virtual ~call_handler() = default;

  /// Asked for the next response message when the client's connection can take it, so that what queues meanwhile can be
  /// merged. A throw ends the call as INTERNAL, after `on_cancel(internal_error)`.
  virtual pull_result pull(std::string& out, status& end) = 0;

  /// The call ended before the handler said `finished`; called at most once and nothing follows it.
  virtual void on_cancel(cancel_reason) noexcept {}

  /// Bidirectional methods only: one request message; valid during the call.
  virtual void on_message(std::string_view) {}
  /// Bidirectional methods only: the client sends no more messages.
  virtual void on_half_close() {}
};

} // namespace rankwise::io::grpc
