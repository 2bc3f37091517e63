#pragma once

#include "io/grpc/unique_fd.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <string>
#include <string_view>

/// Private to src/io/grpc: the listening socket.
namespace rankwise::io::grpc {

struct listener {
  unique_fd socket;
  std::uint16_t port = 0;
};

/// Binds "host:port" or "[ipv6]:port", non-blocking, SO_REUSEADDR. Error: text with the address and the reason.
[[nodiscard]] tl::expected<listener, std::string> listen_on(std::string_view address);

struct accepted {
  unique_fd socket;
  std::string peer; ///< "ipv4:127.0.0.1:40000"
  int error = 0;    ///< errno when there is no socket; 0 with an invalid socket = nobody is waiting.
};

[[nodiscard]] accepted accept_from(int listening_fd);

} // namespace rankwise::io::grpc
