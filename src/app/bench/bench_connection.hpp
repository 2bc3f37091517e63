#pragma once

#include "io/grpc/message_reader.hpp"
#include "io/grpc/unique_fd.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

struct nghttp2_session;

namespace rankwise::app {

/// One HTTP/2 connection of the bench's client, on nghttp2: calls of a server-streaming method, without blocking.
/// It takes a tenth of the CPU that grpc++ needs per message, so that what is measured is the server and not its
/// client.
class bench_connection {
 public:
  struct events {
    /// One response message of the call `tag`.
    std::function<void(std::uint32_t tag, std::string_view message)> on_message;
    /// The call is over; `status` is -1 when none came.
    std::function<void(std::uint32_t tag, int status, const std::string& text)> on_end;
  };

  /// `target` is HOST:PORT with a numeric IPv4 host. Throws std::runtime_error when nobody listens there.
  bench_connection(const std::string& target, const events& told);
  ~bench_connection();
  bench_connection(const bench_connection&) = delete;
  bench_connection& operator=(const bench_connection&) = delete;

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

  /// Begins a call of `path` with one request message; it leaves with the next flush().
  void start(std::uint32_t tag, std::string path, std::string_view request);
  /// Each throws std::runtime_error when the connection is lost.
  void read();
  void flush();

 private:
  struct callbacks;
  struct call {
    explicit call(std::uint32_t t) : tag(t) {}
    std::uint32_t tag;
    std::string body; // prefix and request
    std::size_t sent = 0;
    io::grpc::message_reader reader{1 << 24};
    int status = -1;
    std::string status_text;
  };

  std::string authority_;
  const events& told_;
  io::grpc::unique_fd socket_;
  nghttp2_session* session_ = nullptr;
  std::unordered_map<std::int32_t, std::unique_ptr<call>> calls_;
  std::string out_;
};

} // namespace rankwise::app
