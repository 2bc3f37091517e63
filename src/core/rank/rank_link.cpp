#include "core/rank/rank_link.hpp"

namespace rankwise::core {

std::string_view to_string(send_result r) noexcept {
  switch (r) {
  case send_result::queued:
    return "queued";
  case send_result::queue_full_requests:
    return "queue_full_requests";
  case send_result::queue_full_bytes:
    return "queue_full_bytes";
  case send_result::unknown_link:
    return "unknown_link";
  }
  return "unknown";
}

} // namespace rankwise::core
