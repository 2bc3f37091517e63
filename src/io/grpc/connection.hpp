#pragma once

#include "io/grpc/flood_guard.hpp"
#include "io/grpc/io_context.hpp"
#include "io/grpc/message_reader.hpp"
#include "io/grpc/transport.hpp"

#include <nghttp2/nghttp2.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/// Private to src/io/grpc: one client connection, its HTTP/2 session and its calls.
namespace rankwise::io::grpc {

/// One HTTP/2 stream with the call on it.
class stream final : public call {
 public:
  stream(connection& owner, std::int32_t http2_id, std::size_t message_bytes_max)
      : owner_(owner), http2_id_(http2_id), reader_(message_bytes_max) {}

  [[nodiscard]] call_id id() const noexcept override { return id_; }
  [[nodiscard]] std::string_view path() const noexcept override { return path_; }
  [[nodiscard]] std::string_view peer() const noexcept override;
  [[nodiscard]] std::optional<std::string_view> metadata(std::string_view key) const noexcept override;
  [[nodiscard]] std::optional<std::chrono::nanoseconds> time_left() const noexcept override;
  void resume() noexcept override;
  void end_now(status why) override;

  [[nodiscard]] connection& owner() const noexcept { return owner_; }

 private:
  friend class connection;

  void set_handler(std::unique_ptr<call_handler> handler) noexcept;
  /// Nothing more is pulled, and nobody finds the handler any more.
  void set_ending() noexcept;

  connection& owner_;
  const std::int32_t http2_id_;
  call_id id_ = 0;
  message_reader reader_;
  std::unique_ptr<call_handler> handler_;

  std::string method_;
  std::string path_;
  std::string content_type_;
  std::string timeout_;
  std::string encoding_; ///< What grpc-encoding names; empty = no compression.
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::size_t header_bytes_ = 0;
  std::size_t held_bytes_ = 0; ///< Our part of io_context::unfinished_request_bytes.
  std::multimap<steady_time, call_id>::iterator deadline_;
  steady_time opened_{};
  steady_time last_progress_{}; ///< A byte of the request came, or a byte of the response was taken.

  std::string unsent_; ///< Rest of a message of which a part is already in a DATA frame.
  std::size_t unsent_offset_ = 0;
  status end_;

  bool has_deadline_ = false;
  bool headers_done_ = false;
  bool bidirectional_ = false;
  bool remote_closed_ = false;  ///< The client sent END_STREAM.
  bool dirty_ = false;          ///< In the connection's list of streams to look at when it is flushed.
  bool idle_ = false;           ///< The handler said nothing_now and was not resumed since.
  bool response_begun_ = false; ///< Response HEADERS are submitted.
  bool ending_ = false;         ///< `end_` is set; nothing more is pulled.
  bool end_submitted_ = false;  ///< Trailers, trailers-only HEADERS or RST_STREAM are submitted.
};

class connection {
 public:
  connection(io_context& context, unique_fd socket, std::string peer);
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection();

  [[nodiscard]] int fd() const noexcept { return transport_.fd(); }
  [[nodiscard]] std::string_view peer() const noexcept { return peer_; }
  [[nodiscard]] std::size_t open_calls() const noexcept { return streams_.size(); }
  [[nodiscard]] bool wants_writable() const noexcept { return blocked_; }
  [[nodiscard]] bool unsent() const noexcept { return !out_.empty(); }
  [[nodiscard]] bool goaway_final() const noexcept { return goaway_final_; }
  [[nodiscard]] io_context& context() noexcept { return context_; }

  /// Each returns false when the connection is over and has to be destroyed.
  [[nodiscard]] bool on_readable();
  [[nodiscard]] bool on_writable();
  [[nodiscard]] bool flush();
  /// Time limits that need no precise timer: preface, stalls, keepalive. Called about once a second.
  [[nodiscard]] bool on_tick();
  /// Some limit of on_tick() (other than keepalive) may strike within seconds.
  [[nodiscard]] bool needs_tick() const noexcept;

  void begin_drain();
  /// Sends the last GOAWAY now, without waiting longer for the answer to the first one.
  void finish_goaway();
  void end_all(const status& why);
  void expire(stream& s);
  /// What the handlers of calls still open are told when the connection is destroyed.
  void close_reason(cancel_reason reason) noexcept { close_reason_ = reason; }

  void mark_dirty() noexcept;
  void mark_dirty(stream& s) noexcept;
  /// The server's list of dirty connections was taken.
  void unmark_dirty() noexcept { dirty_ = false; }
  void end_stream_now(stream& s, status why);

 private:
  struct callbacks;

  void count_frame(const nghttp2_frame_hd& frame);
  void took(flood_kind kind);
  void end_for_flood(flood_kind kind);
  void on_headers_complete(stream& s);
  void on_request_bytes(stream& s, std::string_view bytes);
  void on_end_stream(stream& s);
  void dispatch(stream& s, std::string_view body);
  void take_handler(stream& s, tl::expected<std::unique_ptr<call_handler>, status> made);
  void end_for_exception(stream& s, const std::exception& e);
  void refuse(stream& s, status why);
  void cancel(stream& s, cancel_reason reason) noexcept;
  void advance(stream& s);
  void begin_response(stream& s);
  void submit_end(stream& s);
  void submit_reset(stream& s, std::uint32_t http2_error);
  void respond_plain(stream& s, const char* http_status);
  [[nodiscard]] pull_result pull(stream& s);
  [[nodiscard]] ssize_t fill_data(stream& s, char* buffer, std::size_t room, std::uint32_t& flags);
  void release_held_bytes(stream& s) noexcept;
  void end_stalled_streams();
  void close_stream(std::int32_t http2_id, std::uint32_t http2_error) noexcept;
  [[nodiscard]] bool step_handshake();
  [[nodiscard]] bool write_out();
  [[nodiscard]] bool feed(const std::uint8_t* data, std::size_t size);

  io_context& context_;
  transport transport_;
  flood_guard guard_;
  std::string peer_;
  nghttp2_session* session_ = nullptr;
  std::unordered_map<std::int32_t, std::unique_ptr<stream>> streams_;
  std::vector<stream*> dirty_streams_;
  std::vector<stream*> taken_streams_;
  std::string out_;
  std::size_t out_offset_ = 0;
  std::size_t unfinished_requests_ = 0;
  steady_time opened_; ///< Or when its TLS handshake was done.
  steady_time last_read_;
  steady_time last_write_;
  steady_time ping_sent_{};
  cancel_reason close_reason_ = cancel_reason::connection_closed;
  bool blocked_ = false; ///< The socket took less than we had; wait for it to be writable.
  bool dirty_ = false;
  bool handshaking_ = false; ///< TLS only: no byte of HTTP/2 goes either way yet.
  bool settings_seen_ = false;
  bool ping_open_ = false;
  bool draining_ = false;
  bool goaway_final_ = false;
  bool flooded_ = false;    ///< The client went beyond a flood limit: only the GOAWAY is still sent.
  bool flood_told_ = false; ///< And now it is.
};

} // namespace rankwise::io::grpc
