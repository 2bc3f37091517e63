#pragma once

#include <cstdint>
#include <string>

namespace rankwise::core {

/// Where the two legs of a prefill/decode pair find each other.
struct bootstrap_info {
  std::string host;
  std::int32_t port = 0;
  std::int64_t room = 0; ///< 0 .. 2^63-1; int32 by gRPC, 63 bits by HTTP.

  friend bool operator==(const bootstrap_info&, const bootstrap_info&) = default;
};

} // namespace rankwise::core
