#pragma once

#include "io/grpc/unique_fd.hpp"

#include <nghttp2/nghttp2.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// An HTTP/2 client on nghttp2 that does exactly what a test tells it to, one socket, one thread, every wait with a
/// limit.
namespace rankwise::testing {

using headers = std::vector<std::pair<std::string, std::string>>;

struct reply {
  std::map<std::string, std::string> headers;  ///< The first block.
  std::map<std::string, std::string> trailers; ///< The second one.
  std::string data;                            ///< Of all DATA frames.
  std::size_t data_frames = 0;
  bool ended = false;  ///< END_STREAM was received.
  bool closed = false; ///< By END_STREAM on both sides, or by RST_STREAM.
  std::uint32_t reset_code = 0;

  /// grpc-status, wherever it stands; -1 = none.
  [[nodiscard]] int status() const;
  [[nodiscard]] std::string message() const;
  /// Messages in `data`, cut at their prefixes; a rest that is no complete message is dropped.
  [[nodiscard]] std::vector<std::string> messages() const;
};

struct client_settings {
  std::uint32_t window_bytes = 1 << 20;
  bool auto_window_update = true;
};

class raw_client {
 public:
  explicit raw_client(std::uint16_t port, client_settings settings = {});
  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;
  ~raw_client();

  /// Opens a stream with `body` cut into pieces of `piece_bytes`; `end` = with END_STREAM behind it.
  std::int32_t open(std::string_view path, std::string body, bool end = true, const headers& more = {},
                    std::size_t piece_bytes = 16384);
  /// The headers are given whole, pseudo headers included.
  std::int32_t open_with(const headers& all, std::string body, bool end = true, std::size_t piece_bytes = 16384);
  /// More of the body of a stream that was opened without an end.
  void send_more(std::int32_t stream, std::string body, bool end);
  void reset(std::int32_t stream, std::uint32_t code = NGHTTP2_CANCEL);
  void ping();
  void window_update(std::int32_t stream, std::int32_t bytes);

  /// Sends and receives until `done` or the limit; false = the limit. Ends early when the server closes the connection.
  bool pump(const std::function<bool()>& done, std::chrono::milliseconds limit = std::chrono::milliseconds{5000});
  /// pump() until the stream is closed.
  const reply& wait(std::int32_t stream, std::chrono::milliseconds limit = std::chrono::milliseconds{5000});
  /// Sends what is queued without reading.
  void flush();

  [[nodiscard]] reply& of(std::int32_t stream) { return streams_[stream].in; }
  [[nodiscard]] bool connection_closed() const noexcept { return closed_; }
  [[nodiscard]] int goaways() const noexcept { return goaways_; }
  [[nodiscard]] std::int32_t goaway_last_stream() const noexcept { return goaway_last_; }
  [[nodiscard]] int pongs() const noexcept { return pongs_; }
  [[nodiscard]] std::uint32_t server_setting(nghttp2_settings_id id) const;

 private:
  struct callbacks;
  struct outgoing {
    std::string body;
    std::size_t sent = 0;
    std::size_t piece_bytes = 16384;
    bool end = true;
  };
  struct stream {
    reply in;
    outgoing out;
  };

  io::grpc::unique_fd socket_;
  nghttp2_session* session_ = nullptr;
  std::map<std::int32_t, stream> streams_;
  std::string out_;
  bool closed_ = false;
  int goaways_ = 0;
  std::int32_t goaway_last_ = -1;
  int pongs_ = 0;
};

/// A connected blocking socket, for tests that send bytes which no library would.
[[nodiscard]] io::grpc::unique_fd connect_to(std::uint16_t port);

/// The message behind its 5-byte prefix.
[[nodiscard]] std::string framed(std::string_view message, char flag = 0);

} // namespace rankwise::testing
