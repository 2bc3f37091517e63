#include "io/grpc/status.hpp"

#include <array>

namespace rankwise::io::grpc {

std::string_view to_string(status_code code) noexcept {
  static constexpr std::array<std::string_view, 17> names{
      "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED",
  };
  const auto index = static_cast<std::size_t>(code);
  return index < names.size() ? names[index] : std::string_view{"UNKNOWN"};
}

} // namespace rankwise::io::grpc
