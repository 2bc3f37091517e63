#include "core/base/outcome.hpp"

#include <array>

namespace rankwise::core {

std::string_view to_string(failure f) noexcept {
  static constexpr std::array<std::string_view, failure_count> names{
      "none",
      "invalid_argument",
      "duplicate_rid",
      "requests_in_flight_max",
      "tokens_in_flight_max",
      "no_rank_available",
      "pinned_rank_unavailable",
      "rank_queue_full",
      "rank_lost",
      "engine_error",
      "engine_aborted",
      "deadline_exceeded",
      "client_cancelled",
      "aborted_by_request",
      "slow_client",
      "partner_leg_failed",
      "request_manager_restarted",
      "shutting_down",
      "unsupported",
      "request_manager_overloaded",
      "tokens_lost",
  };
  const auto index = static_cast<std::size_t>(f);
  return index < names.size() ? names[index] : std::string_view{"unknown"};
}

std::string_view to_string(outcome_kind k) noexcept {
  switch (k) {
  case outcome_kind::completed:
    return "completed";
  case outcome_kind::failed:
    return "failed";
  case outcome_kind::cancelled:
    return "cancelled";
  case outcome_kind::refused:
    return "refused";
  }
  return "unknown";
}

} // namespace rankwise::core
