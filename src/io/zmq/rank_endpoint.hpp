#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "io/zmq/foreign_requests.hpp"
#include "io/zmq/send_queue.hpp"
#include "messages/dp_rank.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

namespace rankwise::io {

/// One incarnation of one rank, from its HELLO until the next one or its removal: two ZeroMQ sockets and the queue of
/// frames towards the rank. The sender thread owns `monitor`, the receiver thread owns `output`. `input` and the queue
/// are used under `mutex`: whoever has something to send does it at once when nothing waits, and ZeroMQ allows a socket
/// in several threads when a lock is between them.
struct rank_endpoint {
  rank_endpoint(core::rank_id rank, core::rank_epoch first_epoch, std::string zmq_identity, send_queue_limits limits)
      : id(rank), epoch(first_epoch), identity(std::move(zmq_identity)), queue(limits) {}

  const core::rank_id id;
  std::atomic<core::rank_epoch> epoch; ///< The sender thread gives it a new one when the rank is back after a loss.
  const std::string identity;          ///< The ZeroMQ identity that the rank connects with.
  std::string peer_address;            ///< Where its HELLO came from; empty when that was not over tcp, or restored.
  std::string input_address;           ///< Where `input` is bound.
  std::string output_address;          ///< Where `output` is bound.

  zmq::socket_t input;   ///< ROUTER that the rank's DEALER connects to: requests out, registrations in. Under `mutex`.
  zmq::socket_t monitor; ///< PAIR with the connection events of `input`. Sender thread.
  zmq::socket_t output;  ///< PULL that the rank's PUSH connects to. Receiver thread.

  // Sender thread:
  bool registered = false;    ///< The rank registered at least once.
  link_event registration;    ///< What it registered last.
  int peer_fd = -1;           ///< The connection that registered; -1 when there is none, or it was lost.
  std::vector<int> other_fds; ///< Connections of which it is not known that they are the rank's.
  /// A registration that contradicts what other ranks of the pool said, and the connection that it came by. It is taken
  /// when they are gone: an engine registers only once.
  struct contested_registration {
    link_event registration;
    int fd = -1;
  };
  std::optional<contested_registration> contested;
  bool return_refused = false; ///< It is back, and contradicts ranks that came meanwhile; so far it stays lost.

  // Receiver thread:
  std::uint64_t report_sequence = 0; ///< How many load reports the rank sent.
  std::uint64_t batches = 0;         ///< How many of its frames spoke of requests of this node.
  foreign_requests foreign;          ///< Requests of earlier starts of the node that the rank still runs.
  bool other_rank_told = false;      ///< That it sends outputs of another rank was logged.

  // Any thread:
  std::atomic<bool> closed{false};             ///< Out of service for good; the receiver then closes `output`.
  std::atomic<bool> given_up{false};           ///< The rank hangs; its next output brings it back as a new epoch.
  std::atomic<std::int64_t> last_output_ns{0}; ///< When it last sent an output, on the hub's clock; 0 = never.

  std::mutex mutex;
  bool lost = false; ///< Its loss was told and its return was not. Under `mutex`.
  send_queue queue;  ///< Frames that could not be sent at once. Under `mutex`.
};

using rank_endpoint_ptr = std::shared_ptr<rank_endpoint>;

} // namespace rankwise::io
