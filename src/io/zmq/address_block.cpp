#include "io/zmq/address_block.hpp"

#include <arpa/inet.h>

#include <charconv>
#include <cstring>

namespace rankwise::io {

namespace {

struct parsed_address {
  std::array<std::uint8_t, 16> bytes{};
  bool is_v4 = false;
};

std::optional<parsed_address> parse_address(const std::string& text) {
  parsed_address result;
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    result.bytes[10] = result.bytes[11] = 0xff;
    std::memcpy(&result.bytes[12], &v4, 4);
    result.is_v4 = true;
    return result;
  }
  if (::inet_pton(AF_INET6, text.c_str(), result.bytes.data()) == 1)
    return result;
  return std::nullopt;
}

} // namespace

std::optional<address_block> address_block::parse(std::string_view text) {
  const auto slash = text.find('/');
  const auto address = parse_address(std::string{text.substr(0, slash)});
  if (!address)
    return std::nullopt;
  const int most = address->is_v4 ? 32 : 128;
  int bits = most;
  if (slash != std::string_view::npos) {
    const auto digits = text.substr(slash + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error != std::errc{} || end != digits.data() + digits.size() || bits < 0 || bits > most)
      return std::nullopt;
  }
  address_block result;
  result.bytes_ = address->bytes;
  result.bits_ = bits + (address->is_v4 ? 96 : 0);
  return result;
}

bool address_block::contains(const std::string& address) const {
  const auto parsed = parse_address(address);
  if (!parsed)
    return false;
  for (int bit = 0; bit < bits_; ++bit) {
    const auto at = static_cast<std::size_t>(bit / 8);
    const int mask = 0x80 >> (bit % 8);
    if (((parsed->bytes[at] ^ bytes_[at]) & mask) != 0)
      return false;
  }
  return true;
}

} // namespace rankwise::io
