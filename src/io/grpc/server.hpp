#pragma once

#include "io/grpc/call.hpp"
#include "io/grpc/flood_guard.hpp"
#include "io/grpc/status.hpp"
#include "io/grpc/tls_options.hpp"

#include <tl/expected.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

/// A gRPC server on nghttp2: bytes in, bytes out, one I/O thread. Made for many streams with small messages: responses
/// are pulled when a connection can take them, and each connection is written once per round of the loop.
namespace rankwise::io::grpc {

struct server_options {
  std::string listen = "127.0.0.1:0"; ///< "host:port" or "[ipv6]:port"; port 0 = any free one.
  tls_options tls;

  std::size_t connections_max = 10'000;
  std::uint32_t streams_per_connection_max = 8'192;       ///< Announced as SETTINGS_MAX_CONCURRENT_STREAMS.
  std::size_t message_bytes_max = std::size_t{256} << 20; ///< Of one request message.
  std::size_t header_bytes_max = std::size_t{16} << 10;   ///< Of one call's request headers, names and values.
  /// Of all request bytes held for calls whose request is not complete; beyond it calls end as RESOURCE_EXHAUSTED.
  std::size_t unfinished_request_bytes_max = std::size_t{1} << 30;
  std::uint32_t stream_window_bytes = 4U << 20;      ///< Flow control: what a client may send ahead on one stream ...
  std::uint32_t connection_window_bytes = 64U << 20; ///< ... and on one connection.
  std::size_t write_buffer_bytes_max = std::size_t{256}
                                       << 10; ///< Bytes taken from streams for one write of a connection.

  flood_limits floods;

  std::chrono::milliseconds tls_handshake_max{10'000};  ///< From accept to the end of the handshake.
  std::chrono::milliseconds preface_max{10'000};        ///< From then to the client's preface and SETTINGS.
  std::chrono::milliseconds request_stall_max{60'000};  ///< Without a byte of a request that is not complete.
  std::chrono::milliseconds request_whole_max{600'000}; ///< From a call's headers to the end of its request.
  std::chrono::milliseconds write_stall_max{
      30'000}; ///< Without a connection, or a stream, taking a byte of what waits for it.
  std::chrono::milliseconds keepalive_interval{30'000}; ///< Silence after which a PING is sent ...
  std::chrono::milliseconds keepalive_timeout{20'000};  ///< ... and how long its answer may take.
};

/// Totals since the start, except where it says "now".
struct server_counters {
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_refused = 0; ///< Over `connections_max`, or no file descriptor left.
  std::uint64_t connections_now = 0;
  std::uint64_t calls_started = 0; ///< Handed to a method.
  std::uint64_t calls_refused =
      0; ///< Ended by the server before a method saw them (unknown path, bad framing, limits).
  std::uint64_t calls_cancelled = 0;
  std::uint64_t calls_now = 0;  ///< Streams open, with or without a complete request.
  std::uint64_t bytes_read = 0; ///< Of HTTP/2, without what TLS adds.
  std::uint64_t bytes_written = 0;
  std::uint64_t messages_read = 0;
  std::uint64_t messages_written = 0;
  std::uint64_t writes = 0; ///< send() calls that took bytes.
  std::uint64_t tls_handshakes = 0;
  std::uint64_t tls_handshakes_failed = 0; ///< Bad certificate, no h2 by ALPN, no TLS at all, or over the time limit.
  std::uint64_t resets_received = 0;
  std::uint64_t protocol_errors = 0; ///< Connections ended by, or frames rejected for, a breach of HTTP/2.
  std::uint64_t handler_exceptions = 0;
  std::uint64_t wakes = 0;
  std::array<std::uint64_t, tls_failure_count> tls_failures{}; ///< Their sum is tls_handshakes_failed.
  std::array<std::uint64_t, flood_kind_count> floods{};        ///< Connections ended for a flood, by flood_kind.
};

/// Answers a unary call at once. `request` is valid during the call only.
using unary_method = std::function<tl::expected<std::string, status>(call& c, std::string_view request)>;
/// Starts a server-streaming (or slow unary) call: the handler is pulled as soon as it resumes `c`. `c` lives as long
/// as the handler; `request` is valid during the call only.
using streaming_method =
    std::function<tl::expected<std::unique_ptr<call_handler>, status>(call& c, std::string_view request)>;
/// Starts a bidirectional call, before any message of it.
using bidirectional_method = std::function<tl::expected<std::unique_ptr<call_handler>, status>(call& c)>;

class server {
 public:
  explicit server(server_options options);
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server(); ///< stop()

  /// Methods by their path "/package.Service/Method"; before start() only. Anything else answers UNIMPLEMENTED.
  void add_unary(std::string path, unary_method method);
  void add_streaming(std::string path, streaming_method method);
  void add_bidirectional(std::string path, bidirectional_method method);

  /// Runs on the I/O thread after each wake(); before start() only. A throw is counted and swallowed.
  void on_wake(std::function<void()> callback);

  /// Reads the TLS files, binds and starts the I/O thread. Error: text with the file or address and the reason.
  [[nodiscard]] tl::expected<void, std::string> start();

  [[nodiscard]] std::uint16_t port() const noexcept;       ///< 0 before start().
  [[nodiscard]] server_counters counters() const noexcept; ///< From any thread.

  /// From any thread: have `on_wake` run. One atomic exchange when a wake is already on its way.
  void wake() noexcept;
  /// From any thread: run `fn` on the I/O thread. For rare things: it locks and allocates. Dropped once stopped.
  void post(std::function<void()> fn);

  /// I/O thread only: run `fn` once, `delay` from now. Dropped by stop().
  void after(std::chrono::milliseconds delay, std::function<void()> fn);

  /// I/O thread only: the handler of a call that is still open, else nullptr.
  [[nodiscard]] call_handler* find(call_id id) const noexcept;
  /// I/O thread only: call::resume() by id; a call that is not open any more is no error.
  void resume(call_id id) noexcept;
  /// I/O thread only: have what find() reads in the cache soon, for loops over many calls.
  void prefetch(call_id id) const noexcept;

  /// Stop accepting, send GOAWAY, let open calls end, then stop. Calls still open after `timeout` end as UNAVAILABLE.
  /// True: all of them ended by themselves. Blocks; from any thread but the I/O thread.
  bool drain(std::chrono::milliseconds timeout);
  /// The `timeout` of a drain that runs, or is next, is over now. From any thread; does not block.
  void hurry();
  /// End everything now: open calls are cancelled (shutting_down). Idempotent. Blocks; not from the I/O thread.
  void stop() noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace rankwise::io::grpc
