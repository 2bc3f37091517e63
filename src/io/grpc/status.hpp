#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// How a gRPC call ends.
namespace rankwise::io::grpc {

/// The numbers of the `grpc-status` trailer, as the gRPC status code registry gives them.
enum class status_code : std::uint8_t {
  ok = 0,
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  already_exists = 6,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  aborted = 10,
  out_of_range = 11,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  data_loss = 15,
  unauthenticated = 16,
};

/// The name as gRPC spells it, e.g. "RESOURCE_EXHAUSTED".
[[nodiscard]] std::string_view to_string(status_code code) noexcept;

struct status {
  status_code code = status_code::ok;
  std::string message; ///< Any bytes; sent percent-encoded and cut to `status_message_bytes_max`.

  friend bool operator==(const status&, const status&) = default;
};

/// Longest status message that is sent, in bytes before encoding: clients cap the trailers they take.
inline constexpr std::size_t status_message_bytes_max = 2048;

} // namespace rankwise::io::grpc
