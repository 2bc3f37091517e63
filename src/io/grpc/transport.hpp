#pragma once

#include "io/grpc/tls_options.hpp"
#include "io/grpc/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

struct ssl_st;
struct ssl_ctx_st;

/// Private to src/io/grpc: how the bytes of a connection travel, plainly or inside TLS.
namespace rankwise::io::grpc {

/// The certificate, the key and the rules of all TLS connections of a server.
class tls_context {
 public:
  [[nodiscard]] static tl::expected<tls_context, tls_fault> load(const tls_options& options);

  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  struct deleter {
    void operator()(ssl_ctx_st* p) const noexcept;
  };
  std::unique_ptr<ssl_ctx_st, deleter> context_;
};

enum class transfer_state : std::uint8_t {
  moved,   ///< At least one byte.
  blocked, ///< Nothing now; wait for the socket.
  ended,   ///< The client is gone, or broke TLS.
};

struct transfer {
  transfer_state state = transfer_state::blocked;
  std::size_t bytes = 0;
};

enum class handshake_state : std::uint8_t { done, wants_readable, wants_writable, failed };

/// A non-blocking socket with or without TLS on it. The thread that uses one over TLS must have SIGPIPE blocked.
class transport {
 public:
  /// `context` = nullptr: plaintext. Throws std::bad_alloc.
  transport(unique_fd socket, const tls_context* context);
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  ~transport();

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  [[nodiscard]] bool encrypted() const noexcept { return tls_ != nullptr; }
  /// TLS only, until it is `done` or `failed`. A client that does not choose "h2" by ALPN fails.
  [[nodiscard]] handshake_state handshake() noexcept;
  /// Of a handshake that is `failed`.
  [[nodiscard]] tls_failure why_failed() const noexcept { return why_failed_; }
  [[nodiscard]] transfer receive(std::uint8_t* buffer, std::size_t room) noexcept;
  [[nodiscard]] transfer send(std::string_view bytes) noexcept;

 private:
  struct deleter {
    void operator()(ssl_st* p) const noexcept;
  };
  [[nodiscard]] transfer receive_tls(std::uint8_t* buffer, std::size_t room) noexcept;
  [[nodiscard]] transfer send_tls(std::string_view bytes) noexcept;

  unique_fd socket_;
  tls_failure why_failed_ = tls_failure::other;
  std::unique_ptr<ssl_st, deleter> tls_;
  bool orderly_ = false; ///< The handshake is done and nothing failed since: a close_notify may be sent.
};

} // namespace rankwise::io::grpc
