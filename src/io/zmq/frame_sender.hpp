#pragma once

#include "core/rank/rank_link.hpp"
#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/rank_endpoint.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace rankwise::io {

/// Sends frames to ranks: at once on the thread that has one, or, when ZeroMQ does not take it or others wait before
/// it, later on the sender thread (docs/decisions/0005-sending-to-ranks.md). Owns the list of endpoints where something
/// waits; the frames themselves wait in their endpoint.
class frame_sender {
 public:
  frame_sender(hub_context& context, const endpoint_directory& directory, wake_up& sender_thread)
      : context_(context), directory_(directory), sender_thread_(sender_thread) {}

  /// Any thread: sends a frame to the rank's incarnation `epoch`, or queues it. Never waits for the rank.
  core::send_result send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame frame);

  /// Sender thread: sends what is queued as far as ZeroMQ takes it. True when something is left for a later round.
  [[nodiscard]] bool send_queued();

  /// Under the endpoint's mutex: hands a frame to ZeroMQ. False when its peer is not there or takes nothing now.
  [[nodiscard]] bool transmit(rank_endpoint& endpoint, const core::rank_frame& frame);

  /// Sender thread: whether a socket may have input of which its descriptor gives no signal any more, since sending on
  /// it took the signal. Answers true once per such case; all sockets have to be read then.
  [[nodiscard]] bool took_signal_of_input() noexcept { return input_unsignalled_.exchange(false); }

 private:
  [[nodiscard]] bool send_queue_of(rank_endpoint& endpoint);
  [[nodiscard]] static bool has_input(rank_endpoint& endpoint);
  void leave_to_sender_thread(rank_endpoint_ptr endpoint);

  hub_context& context_;
  const endpoint_directory& directory_;
  wake_up& sender_thread_;
  std::atomic<bool> input_unsignalled_{false};
  std::vector<rank_endpoint_ptr> sending_; // sender thread: with something queued

  std::mutex mutex_;
  std::vector<rank_endpoint_ptr> newly_queued_; // not yet known to the sender thread; under mutex_
};

} // namespace rankwise::io
