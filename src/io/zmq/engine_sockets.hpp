#pragma once

#include "io/zmq/hub_context.hpp"
#include "io/zmq/peer_filter.hpp"
#include "io/zmq/rank_endpoint.hpp"

#include <optional>
#include <string>
#include <zmq.hpp>

namespace rankwise::io {

/// Binds and closes the ZeroMQ sockets of an engine hub. Owns the ZeroMQ context, so it must outlive every socket, and
/// the filter of addresses that may connect. The sender thread calls it, or the thread that makes the hub.
class engine_sockets {
 public:
  /// Throws std::invalid_argument naming an entry of `allowed_peers` that is no address and no block.
  explicit engine_sockets(hub_context& context);

  /// The ROUTER where ranks of the pool say HELLO. Throws std::runtime_error naming an address that cannot be bound.
  [[nodiscard]] zmq::socket_t bind_handshake(const hub_pool_options& pool);

  /// Binds the sockets of a rank's incarnation: under the addresses that it has, or else under new ones on
  /// `handshake_address`'s host, which it then has. Throws zmq::error_t when an address cannot be bound.
  void open(rank_endpoint& endpoint, const std::string& handshake_address);
  /// Closes the sockets that the sender thread owns. Under the endpoint's mutex.
  void close_input(rank_endpoint& endpoint);
  /// Closes the socket that the receiver thread owns. On the receiver thread.
  void close_output(rank_endpoint& endpoint);

 private:
  void prepare(zmq::socket_t& socket) const;
  void guard_access(zmq::socket_t& socket) const;
  void open_monitor(rank_endpoint& endpoint, const std::string& name);
  void remove_file_of(const rank_endpoint& endpoint, const std::string& address) const;

  hub_context& context_;
  zmq::context_t zmq_{1};
  std::optional<peer_filter> filter_; // ends before zmq_ does
};

} // namespace rankwise::io
