#include "io/zmq/connection_monitor.hpp"

#include "wire/sglang/request_codec.hpp"

#include <cstdint>
#include <cstring>

namespace rankwise::io {

void connection_monitor::read(rank_endpoint& e) {
  for (;;) {
    zmq::message_t event;
    zmq::message_t address;
    if (!e.monitor.recv(event, zmq::recv_flags::dontwait))
      return;
    if (event.more()) [[maybe_unused]]
      const auto got = e.monitor.recv(address, zmq::recv_flags::dontwait);
    if (event.size() < 6)
      continue;
    std::uint16_t kind = 0;
    std::int32_t fd = -1;
    std::memcpy(&kind, event.data(), sizeof kind);
    std::memcpy(&fd, static_cast<const char*>(event.data()) + sizeof kind, sizeof fd);
    if (kind == ZMQ_EVENT_ACCEPTED)
      accepted(e, fd);
    else if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
      shook_hands(e); // the event names no descriptor
    else if (kind == ZMQ_EVENT_DISCONNECTED)
      disconnected(e, fd);
  }
}

void connection_monitor::accepted(rank_endpoint& e, int fd) {
  if (fd != e.peer_fd) // which may have registered before we hear of it here
    e.other_fds.push_back(fd);
}

void connection_monitor::shook_hands(rank_endpoint& e) {
  if (e.peer_fd < 0 && e.registered && !e.other_fds.empty())
    take_newest_connection(e);
}

void connection_monitor::disconnected(rank_endpoint& e, int fd) {
  if (e.peer_fd < 0)
    registrations_.read(e); // it may have come and gone since the last look
  if (e.contested && e.contested->fd == fd)
    e.contested.reset(); // whoever said it is gone
  if (std::erase(e.other_fds, fd) != 0 || fd != e.peer_fd)
    return; // a stranger's connection says nothing about the rank
  e.peer_fd = -1;
  links_.lose(e, "its connection was lost");
  // The rank's next connection can be there before the end of the old one is told.
  if (!e.other_fds.empty() && is_reachable(e))
    take_newest_connection(e);
}

void connection_monitor::take_newest_connection(rank_endpoint& e) {
  e.peer_fd = e.other_fds.back();
  e.other_fds.pop_back();
  links_.bring_back(e);
}

/// Whether the rank's identity is connected, by a frame that asks nothing of it.
bool connection_monitor::is_reachable(rank_endpoint& e) {
  const std::lock_guard guard{e.mutex};
  return !e.closed && sender_.transmit(e, {core::frame_kind::abort, wire::sglang::encode_abort({}), {}});
}

} // namespace rankwise::io
