#include "io/front/outcome_status.hpp"

namespace rankwise::io::front {

namespace {

using grpc::status_code;

/// What an engine says with an abort is an HTTP status.
status_code from_http(std::int32_t http) noexcept {
  switch (http) {
  case 400:
  case 413:
  case 422:
    return status_code::invalid_argument;
  case 404:
    return status_code::not_found;
  case 408:
  case 504:
    return status_code::deadline_exceeded;
  case 409:
    return status_code::already_exists;
  case 429:
    return status_code::resource_exhausted;
  case 499:
    return status_code::cancelled;
  case 501:
    return status_code::unimplemented;
  case 503:
    return status_code::unavailable;
  default:
    return status_code::internal;
  }
}

} // namespace

status_code to_status_code(core::failure reason, std::int32_t engine_status) noexcept {
  using core::failure;
  switch (reason) {
  case failure::none:
    return status_code::ok;
  case failure::invalid_argument:
    return status_code::invalid_argument;
  case failure::duplicate_rid:
    return status_code::already_exists;
  case failure::requests_in_flight_max:
  case failure::tokens_in_flight_max:
  case failure::rank_queue_full:
  case failure::slow_client:
  case failure::request_manager_overloaded:
    return status_code::resource_exhausted;
  case failure::no_rank_available:
  case failure::pinned_rank_unavailable:
  case failure::rank_lost:
  case failure::tokens_lost:
  case failure::request_manager_restarted:
  case failure::shutting_down:
    return status_code::unavailable;
  case failure::engine_error:
  case failure::engine_aborted:
    return from_http(engine_status);
  case failure::deadline_exceeded:
    return status_code::deadline_exceeded;
  case failure::client_cancelled:
  case failure::aborted_by_request:
    return status_code::cancelled;
  case failure::partner_leg_failed:
    return status_code::internal;
  case failure::unsupported:
    return status_code::unimplemented;
  }
  return status_code::unknown;
}

grpc::status to_status(const core::outcome& o) {
  if (o.kind == core::outcome_kind::completed) {
    return {};
  }
  auto code = to_status_code(o.reason, o.engine_status);
  if (code == status_code::ok) {
    code = status_code::unknown;
  }
  std::string text{core::to_string(o.reason)};
  if (!o.text.empty()) {
    text += ": ";
    text += o.text;
  }
  return {code, std::move(text)};
}

} // namespace rankwise::io::front
