#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"

#include <cstdint>
#include <string>
#include <string_view>

/// The way to the engine: from a DPRank actor to the thread that owns the ZeroMQ sockets.
namespace rankwise::core {

enum class send_result : std::uint8_t {
  queued = 0,
  queue_full_requests = 1, ///< send_queue_requests_max reached
  queue_full_bytes = 2,    ///< send_queue_bytes_max reached
  unknown_link = 3,        ///< no such rank, or another epoch
};

[[nodiscard]] std::string_view to_string(send_result r) noexcept;

/// What kind of frame this is, on the dial-in wire's first byte.
enum class frame_kind : std::uint8_t { add = 0, abort = 1, control = 2 };

/// One frame pair towards an engine.
struct rank_frame {
  frame_kind kind = frame_kind::add;
  std::string payload;
  timestamp accepted_at{}; ///< of an add: when a front had read its request; the clock's origin = not known
};

class rank_link {
 public:
  virtual ~rank_link() = default;

  /// Queue one frame pair for a rank. Never blocks. Aborts and control frames have a reserve of their own, so that a
  /// full queue of requests does not keep them out; order among the frames of one rank is kept.
  virtual send_result send(rank_id rank, rank_epoch epoch, rank_frame frame) noexcept = 0;

  /// When the rank's link last brought an output; the clock's origin when it never did.
  [[nodiscard]] virtual timestamp last_output(rank_id rank) const noexcept = 0;

  /// The engine behind the link hangs: nothing more is sent or taken under `epoch`. When it is heard again it is back
  /// as a new epoch.
  virtual void give_up(rank_id rank, rank_epoch epoch, std::string cause) noexcept = 0;

  /// Close the endpoints of an incarnation; its late frames are dropped and counted from here on.
  virtual void close(rank_id rank, rank_epoch epoch) noexcept = 0;
};

} // namespace rankwise::core
