#include "io/grpc/listener.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace rankwise::io::grpc {

namespace {

std::string text_of(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  const bool v6 = address.ss_family == AF_INET6;
  return (v6 ? "ipv6:[" : "ipv4:") + std::string{host.data()} + (v6 ? "]:" : ":") + port.data();
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
                                       : ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

} // namespace

tl::expected<listener, std::string> listen_on(std::string_view address) {
  const auto fail = [&](std::string_view why) {
    return tl::unexpected("gRPC listen address \"" + std::string{address} + "\": " + std::string{why});
  };
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos) {
    return fail("want host:port");
  }
  std::string host{address.substr(0, colon)};
  const std::string port{address.substr(colon + 1)};
  std::uint16_t number = 0;
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
  if (port.empty() || parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()) {
    return fail("the port is not a number from 0 to 65535");
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return fail(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner{found, &::freeaddrinfo};
  int error = EADDRNOTAVAIL;
  for (const auto* a = found; a != nullptr; a = a->ai_next) {
    unique_fd fd{::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    const int on = 1;
    if (fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
      const auto got = bound_port(fd.get());
      return listener{std::move(fd), got};
    }
    error = errno;
  }
  return fail(std::strerror(error));
}

accepted accept_from(int listening_fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  unique_fd fd{::accept4(listening_fd, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (!fd) {
    const bool nobody = errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR;
    return {{}, {}, nobody ? 0 : errno};
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return {std::move(fd), text_of(address), 0};
}

} // namespace rankwise::io::grpc
