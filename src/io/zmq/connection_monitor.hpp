#pragma once

#include "io/zmq/frame_sender.hpp"
#include "io/zmq/rank_links.hpp"
#include "io/zmq/registrations.hpp"

namespace rankwise::io {

/// Notices from ZeroMQ's connection events that a rank's connection was lost or made again. A connection is the rank's
/// when it registered, or when it came in place of the one that did. Sender thread.
class connection_monitor {
 public:
  connection_monitor(rank_links& links, registrations& registrations, frame_sender& sender)
      : links_(links), registrations_(registrations), sender_(sender) {}

  /// Reads what happened to the endpoint's connections.
  void read(rank_endpoint& endpoint);

 private:
  void accepted(rank_endpoint& endpoint, int fd);
  void shook_hands(rank_endpoint& endpoint);
  void disconnected(rank_endpoint& endpoint, int fd);
  void take_newest_connection(rank_endpoint& endpoint);
  [[nodiscard]] bool is_reachable(rank_endpoint& endpoint);

  rank_links& links_;
  registrations& registrations_;
  frame_sender& sender_;
};

} // namespace rankwise::io
