#pragma once

#include "io/zmq/connection_monitor.hpp"
#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/frame_sender.hpp"
#include "io/zmq/handshakes.hpp"
#include "io/zmq/link_orders.hpp"
#include "io/zmq/rank_links.hpp"
#include "io/zmq/registrations.hpp"

#include <atomic>

namespace rankwise::io {

/// The sender thread of an engine hub: waits until ranks say HELLO, register, connect or disconnect, or until another
/// thread wants something of it, and lets the part that is responsible do it. Owns none of them.
class sender_loop {
 public:
  struct parts {
    descriptor_poll& poll;
    wake_up& wake;
    handshakes& hellos;
    registrations& registered;
    connection_monitor& monitor;
    rank_links& links;
    link_orders& orders;
    frame_sender& sender;
  };

  explicit sender_loop(parts p) : p_(p) {}

  /// The sender thread: works until `running` is false, then closes every link. Throws zmq::error_t when a socket
  /// fails.
  void run(const std::atomic<bool>& running);

 private:
  [[nodiscard]] bool wait(int timeout_ms);
  [[nodiscard]] bool read_all();

  parts p_;
};

} // namespace rankwise::io
