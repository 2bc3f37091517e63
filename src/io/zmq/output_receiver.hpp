#pragma once

#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/engine_sockets.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/link_orders.hpp"
#include "io/zmq/output_intake.hpp"
#include "io/zmq/rank_endpoint.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace rankwise::io {

/// The receiver thread of an engine hub: waits for outputs of any rank, reads them fairly and hands each frame to the
/// intake. Frames of closed links and of ranks that were given up are dropped and counted. Owns the waiting; shares
/// ownership of the endpoints, whose `output` sockets only it uses.
class output_receiver {
 public:
  output_receiver(hub_context& context, engine_sockets& sockets, const endpoint_directory& directory,
                  link_orders& orders, output_intake& intake)
      : context_(context), sockets_(sockets), directory_(directory), orders_(orders), intake_(intake) {}

  /// The receiver thread: reads until `running` is false, then closes the sockets. Throws zmq::error_t when a socket
  /// fails.
  void run(const std::atomic<bool>& running);

  /// Any thread: outputs of this endpoint are read from now on.
  void add(const rank_endpoint_ptr& endpoint);
  /// Any thread: some endpoint was closed, its socket is to be closed too.
  void look_for_closed() noexcept { wake_.raise(); }
  /// Any thread: `running` changed.
  void wake() noexcept { wake_.raise(); }

 private:
  void wait_for_outputs();
  void drop_closed();
  void take_in_added();
  [[nodiscard]] bool read(rank_endpoint& endpoint);
  void take(rank_endpoint& endpoint, const zmq::message_t& frame, bool multipart);
  void heard_again(rank_endpoint& endpoint);

  hub_context& context_;
  engine_sockets& sockets_;
  const endpoint_directory& directory_;
  link_orders& orders_;
  output_intake& intake_;
  wake_up wake_;

  // Receiver thread:
  descriptor_poll poll_;
  std::vector<rank_endpoint_ptr> sources_; // all that are read
  std::vector<rank_endpoint*> readable_;   // those of sources_ that were not yet read until nothing was left
  bool sources_changed_ = false;           // some were added or closed

  std::mutex mutex_;
  std::vector<rank_endpoint_ptr> added_; // not yet among sources_; under mutex_
};

} // namespace rankwise::io
