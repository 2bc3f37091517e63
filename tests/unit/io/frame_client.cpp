#include "frame_client.hpp"

#include "raw_client.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace rankwise::testing {

std::string number(std::uint32_t value) {
  std::string out(4, '\0');
  for (std::size_t i = 0; i < 4; ++i) {
    out[3 - i] = static_cast<char>(value >> (8 * i));
  }
  return out;
}

std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
  std::string out = number(static_cast<std::uint32_t>(payload.size())).substr(1);
  out += static_cast<char>(type);
  out += static_cast<char>(flags);
  out += number(stream);
  out += payload;
  return out;
}

std::string setting(std::uint16_t id, std::uint32_t value) {
  return number(id).substr(2) + number(value);
}

std::string literals(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string out;
  for (const auto& [name, value] : fields) {
    out += '\0';
    out += static_cast<char>(name.size());
    out += name;
    out += static_cast<char>(value.size());
    out += value;
  }
  return out;
}

std::string request_block(std::string_view path, const std::vector<std::pair<std::string, std::string>>& more) {
  return literals({{":method", "POST"},
                   {":scheme", "http"},
                   {":path", std::string{path}},
                   {":authority", "test"},
                   {"content-type", "application/grpc"},
                   {"te", "trailers"}}) +
         literals(more);
}

std::string whole_call(std::uint32_t stream, std::string_view path, std::string_view message) {
  return frame(headers_frame, end_headers, stream, request_block(path)) +
         frame(data, end_stream, stream, framed(message));
}

std::uint32_t seen_frame::code() const {
  const std::size_t at = type == goaway ? 4 : 0;
  std::uint32_t out = 0;
  for (std::size_t i = 0; i < 4 && at + i < payload.size(); ++i) {
    out = out << 8 | static_cast<unsigned char>(payload[at + i]);
  }
  return out;
}

frame_client::frame_client(std::uint16_t port, bool greet) : socket_(connect_to(port)) {
  const timeval limit{5, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (greet) {
    send(std::string{preface} + frame(settings, 0, 0, ""));
  }
}

bool frame_client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool frame_client::read_some(std::chrono::milliseconds limit) {
  pollfd wanted{socket_.get(), POLLIN, 0};
  if (closed_ || ::poll(&wanted, 1, static_cast<int>(limit.count())) <= 0) {
    return false;
  }
  std::array<char, 65536> buffer;
  const auto got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got <= 0) {
    closed_ = true;
    return false;
  }
  in_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::optional<seen_frame> frame_client::next(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (in_.size() >= 9) {
      const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(in_[i])); };
      const std::size_t size = byte(0) << 16 | byte(1) << 8 | byte(2);
      if (in_.size() >= 9 + size) {
        seen_frame out{static_cast<std::uint8_t>(byte(3)), static_cast<std::uint8_t>(byte(4)),
                       (byte(5) & 0x7f) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8), in_.substr(9, size)};
        in_.erase(0, 9 + size);
        return out;
      }
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0 || !read_some(left)) {
      return std::nullopt;
    }
  }
}

std::optional<seen_frame> frame_client::until(const std::function<bool(const seen_frame&)>& wanted,
                                              std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    auto got = next(std::max(left, std::chrono::milliseconds{0}));
    if (!got || wanted(*got)) {
      return got;
    }
  }
}

} // namespace rankwise::testing
