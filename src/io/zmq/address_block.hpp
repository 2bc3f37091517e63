#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rankwise::io {

/// A block of addresses: "10.1.2.3", "10.1.0.0/16", "fd00::/8".
class address_block {
 public:
  [[nodiscard]] static std::optional<address_block> parse(std::string_view text);
  /// `address` as ZeroMQ gives it: IPv4, IPv6, or IPv4 mapped into IPv6.
  [[nodiscard]] bool contains(const std::string& address) const;

 private:
  std::array<std::uint8_t, 16> bytes_{}; // IPv4 mapped into IPv6
  int bits_ = 0;
};

} // namespace rankwise::io
