#include "io/grpc/flood_guard.hpp"

#include <algorithm>

namespace rankwise::io::grpc {

namespace {

constexpr std::uint64_t one_frame = 1000; // a bucket's unit is what one frame per second earns in a millisecond
constexpr std::uint64_t window_updates_per_frame = 4;

} // namespace

std::string_view to_string(flood_kind kind) noexcept {
  switch (kind) {
  case flood_kind::pings:
    return "too_many_pings";
  case flood_kind::control:
    return "too_many_control_frames";
  case flood_kind::empty_data:
    return "too_many_empty_data_frames";
  case flood_kind::priorities:
    return "too_many_priorities";
  case flood_kind::window_updates:
    return "too_many_window_updates";
  case flood_kind::resets:
    return "too_many_resets";
  case flood_kind::unread:
    return "too_many_unread_frames";
  }
  return "unknown";
}

flood_guard::flood_guard(const flood_limits& limits, time_point now) noexcept : limits_(limits) {
  for (std::size_t i = 0; i < flood_kind_count; ++i) {
    buckets_[i] = {allowance(static_cast<flood_kind>(i)).burst * one_frame, now};
  }
}

const frame_allowance& flood_guard::allowance(flood_kind kind) const noexcept {
  switch (kind) {
  case flood_kind::empty_data:
    return limits_.empty_data;
  case flood_kind::priorities:
    return limits_.priorities;
  case flood_kind::window_updates:
    return limits_.window_updates;
  case flood_kind::resets:
    return limits_.resets;
  case flood_kind::pings:
  case flood_kind::control:
  case flood_kind::unread:
    break;
  }
  return limits_.control;
}

bool flood_guard::took_frame(flood_kind kind, time_point now) noexcept {
  auto& b = buckets_[static_cast<std::size_t>(kind)];
  const auto& allowed = allowance(kind);
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - b.filled);
  if (passed.count() > 0) {
    b.left = std::min(b.left + static_cast<std::uint64_t>(passed.count()) * allowed.per_s, allowed.burst * one_frame);
    b.filled += passed;
  }
  if (b.left < one_frame) {
    return false;
  }
  b.left -= one_frame;
  return true;
}

bool flood_guard::took_ping(time_point now) noexcept {
  const bool early = pinged_ && now - last_ping_ < limits_.ping_interval_min;
  pinged_ = true;
  last_ping_ = now;
  if (sent_since_ping_) {
    sent_since_ping_ = false;
    strikes_ = 0;
    return true;
  }
  return !early || ++strikes_ <= limits_.ping_strikes_max;
}

void flood_guard::allow_window_updates() noexcept {
  auto& left = buckets_[static_cast<std::size_t>(flood_kind::window_updates)].left;
  left = std::min(left + window_updates_per_frame * one_frame, limits_.window_updates.burst * one_frame);
}

} // namespace rankwise::io::grpc
