#pragma once

#include "core/base/time.hpp"
#include "core/load/load_report.hpp"
#include "core/placement/orders.hpp"
#include "core/placement/policy.hpp"
#include "core/rank/rank_machine.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace rankwise::core {

struct pool_options;

/// What came of one question for a rank.
struct placement_decision {
  enum class kind : std::uint8_t { placed = 0, waits = 1, refused = 2 };
  kind what = kind::placed;
  std::uint16_t rank = 0; ///< of `placed`, with its epoch
  rank_epoch epoch = 0;
  std::optional<double> score; ///< of `placed`, where the policy chose
  failure reason = failure::none;

  friend bool operator==(const placement_decision&, const placement_decision&) = default;
};

/// A leg as it is asked for, apart from the wire it came by.
struct leg_request {
  std::string_view rid;
  std::uint32_t attempt = 0;
  std::uint32_t sample = 0;
  std::optional<std::int32_t> data_parallel_rank;
  placement_request wanted; ///< handle and now too
  timestamp received_at{};  ///< when its front took it; the origin = not known
};

/// Is told everything that a pool_controller is told and that its decisions can depend on, in that order, and each
/// decision; overrides what it wants to hear. Called inside the controller: must be quick, and not throw.
class decision_recorder {
 public:
  virtual ~decision_recorder() = default;
  /// A new controller: what it knew before counts no more.
  virtual void opened(const pool_options&) noexcept {}
  virtual void rank_up(const rank_announcement&, timestamp) noexcept {}
  virtual void rank_paused(rank_id, rank_epoch, rank_state) noexcept {}
  virtual void rank_down(rank_id, rank_epoch, rank_state) noexcept {}
  virtual void progress(const batch_progress&, timestamp) noexcept {}
  virtual void ejections_over(timestamp) noexcept {}
  virtual void released(request_handle, timestamp) noexcept {}
  virtual void ended(request_handle, timestamp, std::uint32_t /*generated*/) noexcept {}
  virtual void owner_gone(owner_id, timestamp) noexcept {}
  virtual void reported(const load_report&) noexcept {}
  virtual void restored(const std::vector<leg_record>&, timestamp) noexcept {}
  virtual void policy_set(std::string_view /*name*/, timestamp) noexcept {}
  /// It begins to wait for a rank or for room; no decision depends on it.
  virtual void waits(const leg_request&) noexcept {}
  /// It waits no more, or its rank is gone, and wants none unless it is asked for again; no decision depends on it
  /// either.
  virtual void left(request_handle, timestamp) noexcept {}
  virtual void decided(const leg_request&, const placement_decision&) noexcept {}
};

/// Those that a controller tells, in this order.
using decision_recorders = std::vector<decision_recorder*>;

} // namespace rankwise::core
