#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/rank/rank_link.hpp"
#include "io/zmq/foreign_requests.hpp"
#include "messages/dp_rank.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

namespace rankwise::io {

/// One incarnation of one rank: its two endpoints and the queue towards it. The sender thread owns `monitor`, the
/// receiver thread owns `output`. `input` and the queue are used under `mutex`: whoever has something to send does it
/// at once when nothing waits, and ZeroMQ allows a socket in several threads when a lock is between them.
struct rank_endpoint {
  core::rank_id id;
  std::atomic<core::rank_epoch> epoch{0};
  std::string identity;
  std::string peer_address; ///< of its HELLO; empty: not over tcp, or restored
  std::string input_address;
  std::string output_address;

  zmq::socket_t input;   // ROUTER, the rank's DEALER connects; under `mutex`
  zmq::socket_t monitor; // PAIR, events of `input`
  zmq::socket_t output;  // PULL, the rank's PUSH connects

  bool registered = false;    // sender thread
  link_event registration;    // sender thread: what it registered
  int peer_fd = -1;           // sender thread: the connection that registered; -1 = none, or lost
  std::vector<int> other_fds; // sender thread: connections that are not known to be the rank's
  std::atomic<bool> closed{false};
  std::atomic<std::int64_t> last_output_ns{0};
  std::uint64_t report_sequence = 0; // receiver thread
  std::uint64_t batches = 0;         // receiver thread: frames with items of ours
  foreign_requests foreign;          // receiver thread
  std::atomic<bool> given_up{false}; // it hangs; its next output brings it back

  std::mutex mutex;
  bool lost = false; // said so, and not back yet
  std::deque<core::rank_frame> queue;
  std::uint32_t queued_requests = 0;
  std::uint64_t queued_bytes = 0;
};

} // namespace rankwise::io
