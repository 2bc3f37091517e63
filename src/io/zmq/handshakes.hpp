#pragma once

#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/engine_sockets.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/rank_links.hpp"

#include <cstdint>
#include <string>
#include <vector>
#include <zmq.hpp>

namespace rankwise::io {

/// Where ranks say HELLO: one socket per pool, which it owns. A HELLO gets a new incarnation of its rank, whose
/// addresses are the answer; it displaces the incarnation before it. Sender thread; before that thread runs, the one
/// that starts the hub.
class handshakes {
 public:
  /// Binds the address of every pool. Throws std::runtime_error naming the one that cannot be bound.
  handshakes(hub_context& context, engine_sockets& sockets, rank_links& links);

  /// Lets `poll` wait for HELLOs too.
  void watch(descriptor_poll& poll);
  /// Reads what arrived at all pools. True when something may be left for another round.
  bool read_all();

  /// Where ranks of a pool say HELLO, with the real port. Any thread; throws std::out_of_range without such a pool.
  [[nodiscard]] const std::string& address(std::size_t pool) const { return pools_.at(pool).address; }

 private:
  struct pool_socket {
    zmq::socket_t socket;
    std::string address;
  };

  bool read(std::uint16_t pool);
  void take(std::uint16_t pool, zmq::message_t& identity, const zmq::message_t& payload);
  void welcome(core::rank_id rank, zmq::message_t& identity, std::string peer_address);
  void answer(const rank_endpoint& endpoint, zmq::message_t& identity);
  [[nodiscard]] std::string cause_of_hello(const rank_endpoint& arriving) const;

  hub_context& context_;
  engine_sockets& sockets_;
  rank_links& links_;
  std::vector<pool_socket> pools_;
};

} // namespace rankwise::io
