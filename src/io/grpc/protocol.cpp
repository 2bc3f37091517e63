#include "io/grpc/protocol.hpp"

namespace rankwise::io::grpc {

void write_message_prefix(char* to, std::uint32_t message_bytes) noexcept {
  to[0] = 0;
  to[1] = static_cast<char>(message_bytes >> 24);
  to[2] = static_cast<char>(message_bytes >> 16);
  to[3] = static_cast<char>(message_bytes >> 8);
  to[4] = static_cast<char>(message_bytes);
}

std::optional<std::chrono::nanoseconds> parse_timeout(std::string_view value) noexcept {
  if (value.size() < 2 || value.size() > 9) {
    return std::nullopt;
  }
  std::int64_t count = 0;
  for (const char c : value.substr(0, value.size() - 1)) {
    if (c < '0' || c > '9') {
      return std::nullopt;
    }
    count = count * 10 + (c - '0');
  }
  // 8 digits of hours are 3.6e20 ns, more than 64 bits hold; nobody can tell a century from a longer time.
  constexpr std::int64_t hours_max = 24 * 366 * 100;
  switch (value.back()) {
  case 'H':
    return std::chrono::hours{count < hours_max ? count : hours_max};
  case 'M':
    return std::chrono::minutes{count < hours_max * 60 ? count : hours_max * 60};
  case 'S':
    return std::chrono::seconds{count};
  case 'm':
    return std::chrono::milliseconds{count};
  case 'u':
    return std::chrono::microseconds{count};
  case 'n':
    return std::chrono::nanoseconds{count};
  default:
    return std::nullopt;
  }
}

std::string percent_encode(std::string_view text) {
  static constexpr char digits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      out.push_back(c);
      continue;
    }
    out.push_back('%');
    out.push_back(digits[byte >> 4]);
    out.push_back(digits[byte & 15]);
  }
  return out;
}

std::string_view cut_text(std::string_view text, std::size_t bytes_max) noexcept {
  if (text.size() <= bytes_max) {
    return text;
  }
  auto end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
    --end;
  }
  return text.substr(0, end);
}

bool is_grpc_content_type(std::string_view value) noexcept {
  constexpr std::string_view base = "application/grpc";
  if (!value.starts_with(base)) {
    return false;
  }
  return value.size() == base.size() || value[base.size()] == '+' || value[base.size()] == ';';
}

} // namespace rankwise::io::grpc
