#pragma once

#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/engine_sockets.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/link_orders.hpp"
#include "io/zmq/output_receiver.hpp"
#include "io/zmq/rank_endpoint.hpp"

#include <string>
#include <vector>

namespace rankwise::io {

/// The links in service, from a rank's HELLO to its end: each is taken in, may be lost and be back as a new epoch, and
/// is retired. Tells the node each of these changes. The sender thread calls it; before that thread runs, the one that
/// starts the hub. Shares ownership of the endpoints with the directory and the receiver.
class rank_links {
 public:
  rank_links(hub_context& context, engine_sockets& sockets, endpoint_directory& directory, output_receiver& receiver,
             descriptor_poll& poll);

  /// An event about an endpoint's present epoch, with nothing said about its registration.
  [[nodiscard]] static link_event event_of(const rank_endpoint& endpoint, link_event_kind kind, std::string cause);

  /// The epoch of the rank's next incarnation; never the same twice.
  [[nodiscard]] core::rank_epoch next_epoch(core::rank_id rank) { return ++newest_epochs_[directory_.slot_of(rank)]; }
  /// Epochs of the rank that come now are higher than `epoch`.
  void continue_after(core::rank_id rank, core::rank_epoch epoch) { newest_epochs_[directory_.slot_of(rank)] = epoch; }

  /// Puts an endpoint with bound sockets into service: others may send on it, and its outputs are read.
  void take_in(rank_endpoint_ptr endpoint);
  /// Takes the present endpoint of a rank out of service for good, if there is one.
  void retire(core::rank_id rank);
  /// Takes every endpoint out of service, at the end of the sender thread.
  void retire_all();

  /// The endpoint's connection is gone or its engine hangs: its queue is dropped and the loss told, once.
  void lose(rank_endpoint& endpoint, std::string cause);
  /// The process behind a lost endpoint is back without a HELLO: it is served again, as a new epoch. Not while what it
  /// registered contradicts ranks that are there: then it stays lost, which is told once as refused.
  void bring_back(rank_endpoint& endpoint);
  /// Tries again with those that are back and were refused.
  void bring_back_refused();

  /// How a registration contradicts a rank of its pool that is registered and there: "rank 2 says data_parallel_size 5,
  /// rank 0 says 3". Empty when it contradicts none.
  [[nodiscard]] std::string contradiction_of(const link_event& registration) const;

  /// Does what other threads asked for, unless the incarnation that they meant is no longer in service.
  void carry_out(link_orders::orders orders);

  /// Tells which ranks are registered now, for the state file of the node.
  void tell_records() const;

  /// The endpoints in service.
  [[nodiscard]] const std::vector<rank_endpoint_ptr>& all() const noexcept { return live_; }
  /// The endpoint in service of a rank; null when there is none.
  [[nodiscard]] rank_endpoint_ptr find(core::rank_id rank) const;

 private:
  void shut(rank_endpoint& endpoint);

  hub_context& context_;
  engine_sockets& sockets_;
  endpoint_directory& directory_;
  output_receiver& receiver_;
  descriptor_poll& poll_;
  std::vector<core::rank_epoch> newest_epochs_; // by slot: the newest one given
  std::vector<rank_endpoint_ptr> live_;
};

} // namespace rankwise::io
