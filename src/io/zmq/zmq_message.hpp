#pragma once

#include <string>
#include <string_view>
#include <zmq.hpp>

/// Reading messages of several parts from ZeroMQ's sockets.
namespace rankwise::io {

/// The bytes of one part, valid as long as the part is.
[[nodiscard]] inline std::string_view view(const zmq::message_t& part) {
  return {static_cast<const char*>(part.data()), part.size()};
}

/// Reads the parts that follow a ROUTER's identity part; `payload` is then the last of them.
inline void receive_rest(zmq::socket_t& socket, zmq::message_t& payload) {
  do {
    if (!socket.recv(payload, zmq::recv_flags::dontwait))
      return;
  } while (payload.more());
}

/// The address that a message came from; empty when it did not come over tcp.
[[nodiscard]] inline std::string peer_address_of(const zmq::message_t& part) {
  const char* address = ::zmq_msg_gets(part.handle(), "Peer-Address");
  return address == nullptr ? "" : address;
}

} // namespace rankwise::io
