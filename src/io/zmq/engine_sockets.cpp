#include "io/zmq/engine_sockets.hpp"

#include <cstdio>
#include <stdexcept>
#include <string_view>

namespace rankwise::io {

namespace {

/// How many messages of one rank ZeroMQ itself holds, in each direction.
constexpr int messages_in_zmq_max = 1000;

/// ZeroMQ spells "any free port" as *.
std::string with_any_port(const std::string& address) {
  if (address.starts_with("tcp://") && address.ends_with(":0"))
    return address.substr(0, address.size() - 1) + "*";
  return address;
}

std::string host_of(const std::string& tcp_address) {
  const std::string_view prefix = "tcp://";
  const auto colon = tcp_address.rfind(':');
  return tcp_address.substr(prefix.size(), colon - prefix.size());
}

/// Unique among all incarnations of all ranks, also of earlier starts of the node.
std::string name_of(const rank_endpoint& endpoint, core::node_boot boot) {
  return std::to_string(boot) + "-" + std::to_string(endpoint.id.pool) + "-" + std::to_string(endpoint.id.rank) + "-" +
         std::to_string(endpoint.epoch.load());
}

} // namespace

engine_sockets::engine_sockets(hub_context& context) : context_(context) {
  if (!context.options.allowed_peers.empty())
    filter_.emplace(zmq_, context.options.allowed_peers, context.counters.peers_refused);
}

zmq::socket_t engine_sockets::bind_handshake(const hub_pool_options& pool) {
  zmq::socket_t socket{zmq_, zmq::socket_type::router};
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::router_handover, true);
  guard_access(socket);
  try {
    socket.bind(with_any_port(pool.handshake));
  } catch (const zmq::error_t& e) {
    throw std::runtime_error("cannot bind handshake endpoint " + pool.handshake + " of pool " + pool.name + ": " +
                             e.what());
  }
  return socket;
}

void engine_sockets::open(rank_endpoint& e, const std::string& handshake_address) {
  const auto name = name_of(e, context_.options.boot);
  e.input = zmq::socket_t{zmq_, zmq::socket_type::router};
  prepare(e.input);
  e.input.set(zmq::sockopt::router_mandatory, true);
  e.input.set(zmq::sockopt::router_handover, true);
  e.input.set(zmq::sockopt::sndhwm, messages_in_zmq_max);
  open_monitor(e, name);
  e.output = zmq::socket_t{zmq_, zmq::socket_type::pull};
  prepare(e.output);
  e.output.set(zmq::sockopt::rcvhwm, messages_in_zmq_max);
  const auto bind = [&](zmq::socket_t& socket, const char* suffix, const std::string& old_address) {
    if (!old_address.empty())
      socket.bind(old_address);
    else if (context_.pool_of(e.id).data_over_ipc)
      socket.bind("ipc://" + context_.options.ipc_folder + "/" + name + suffix);
    else
      socket.bind("tcp://" + host_of(handshake_address) + ":*");
    return socket.get(zmq::sockopt::last_endpoint);
  };
  e.input_address = bind(e.input, ".in", e.input_address);
  e.output_address = bind(e.output, ".out", e.output_address);
}

void engine_sockets::open_monitor(rank_endpoint& e, const std::string& name) {
  const auto address = "inproc://monitor-" + name;
  if (::zmq_socket_monitor(e.input.handle(), address.c_str(),
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0)
    throw zmq::error_t{};
  e.monitor = zmq::socket_t{zmq_, zmq::socket_type::pair};
  e.monitor.set(zmq::sockopt::linger, 0);
  e.monitor.connect(address);
}

void engine_sockets::close_input(rank_endpoint& e) {
  ::zmq_socket_monitor(e.input.handle(), nullptr, 0);
  e.monitor.close();
  // What is on the way in parts goes out whole, or at least not before this time is over: libzmq 4.3.4 aborts the
  // process when a peer disconnects at the moment in which a socket without linger cuts off a message that was half
  // sent (session_base.cpp, clean_pipes).
  e.input.set(zmq::sockopt::linger, 100);
  e.input.close();
  remove_file_of(e, e.input_address);
}

void engine_sockets::close_output(rank_endpoint& e) {
  e.output.close();
  remove_file_of(e, e.output_address);
}

void engine_sockets::prepare(zmq::socket_t& socket) const {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::heartbeat_ivl, context_.options.heartbeat_interval_ms);
  socket.set(zmq::sockopt::heartbeat_timeout, context_.options.heartbeat_timeout_ms);
  guard_access(socket);
}

void engine_sockets::guard_access(zmq::socket_t& socket) const {
  if (filter_)
    socket.set(zmq::sockopt::zap_domain, peer_filter::domain);
}

void engine_sockets::remove_file_of(const rank_endpoint& e, const std::string& address) const {
  constexpr std::string_view prefix = "ipc://";
  if (context_.pool_of(e.id).data_over_ipc)
    std::remove(address.substr(prefix.size()).c_str());
}

} // namespace rankwise::io
