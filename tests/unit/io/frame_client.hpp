#pragma once

#include "io/grpc/unique_fd.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// HTTP/2 frames as bytes, written by hand: what raw_client's nghttp2 would refuse to send.
namespace rankwise::testing {

/// RFC 9113 section 6 and 7, as far as the tests need them.
enum frame_type : std::uint8_t {
  data = 0,
  headers_frame = 1,
  priority = 2,
  rst_stream = 3,
  settings = 4,
  push_promise = 5,
  ping = 6,
  goaway = 7,
  window_update = 8,
  continuation = 9
};
inline constexpr std::uint8_t end_stream = 1; // also ACK
inline constexpr std::uint8_t end_headers = 4;
inline constexpr std::uint8_t padded = 8;

[[nodiscard]] std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload);
/// Four bytes, big-endian.
[[nodiscard]] std::string number(std::uint32_t value);
/// One entry of SETTINGS.
[[nodiscard]] std::string setting(std::uint16_t id, std::uint32_t value);
/// HPACK without table and Huffman; names and values below 127 bytes.
[[nodiscard]] std::string literals(const std::vector<std::pair<std::string, std::string>>& fields);
/// HPACK of a correct gRPC request; `more` behind it.
[[nodiscard]] std::string request_block(std::string_view path,
                                        const std::vector<std::pair<std::string, std::string>>& more = {});
/// HEADERS and DATA of a whole unary call.
[[nodiscard]] std::string whole_call(std::uint32_t stream, std::string_view path, std::string_view message);

inline constexpr std::string_view preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

struct seen_frame {
  std::uint8_t type = 0;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::string payload;

  /// Error code of RST_STREAM or GOAWAY.
  [[nodiscard]] std::uint32_t code() const;
  /// What a GOAWAY says behind its code.
  [[nodiscard]] std::string debug_data() const { return payload.size() < 8 ? "" : payload.substr(8); }
};

/// A blocking socket; every wait has a limit.
class frame_client {
 public:
  /// `greet`: sends the preface and empty SETTINGS first.
  explicit frame_client(std::uint16_t port, bool greet = true);

  /// False: the server has closed the connection, or took nothing for five seconds.
  bool send(std::string_view bytes);
  /// The next frame; nullopt when the connection is closed or nothing came within the limit.
  [[nodiscard]] std::optional<seen_frame> next(std::chrono::milliseconds limit = std::chrono::milliseconds{5000});
  /// Reads frames until one satisfies `wanted`; the others are dropped.
  [[nodiscard]] std::optional<seen_frame> until(const std::function<bool(const seen_frame&)>& wanted,
                                                std::chrono::milliseconds limit = std::chrono::milliseconds{5000});
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  bool read_some(std::chrono::milliseconds limit);

  io::grpc::unique_fd socket_;
  std::string in_;
  bool closed_ = false;
};

} // namespace rankwise::testing
