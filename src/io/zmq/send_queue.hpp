#pragma once

#include "core/rank/rank_link.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>

namespace rankwise::io {

/// How much may wait for one rank.
struct send_queue_limits {
  std::uint32_t requests_max = 0; ///< Requests; of all frames together four times as many.
  std::uint64_t bytes_max = 0;    ///< Bytes of all frames together, by which requests are refused.
};

/// The frames that wait to be sent to one rank, oldest first. Its owner, the rank's endpoint, calls it under its mutex.
class send_queue {
 public:
  explicit send_queue(send_queue_limits limits) : limits_(limits) {}

  /// Appends a frame, or says which limit it would break. The limits are for requests; aborts and control frames are
  /// small and must get through, so that only their number is limited, to four times that of the requests.
  core::send_result push(core::rank_frame frame);

  /// The oldest frame; the queue must not be empty.
  [[nodiscard]] const core::rank_frame& front() const { return frames_.front(); }
  /// Drops the oldest frame; the queue must not be empty.
  void pop();
  void clear();
  [[nodiscard]] bool empty() const noexcept { return frames_.empty(); }

 private:
  [[nodiscard]] core::send_result room_for(const core::rank_frame& frame) const noexcept;

  send_queue_limits limits_;
  std::deque<core::rank_frame> frames_;
  std::uint32_t requests_ = 0;
  std::uint64_t bytes_ = 0;
};

} // namespace rankwise::io
