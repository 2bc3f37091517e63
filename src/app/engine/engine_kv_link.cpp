#include "app/engine/engine_kv_link.hpp"

#include <array>
#include <cstring>

namespace rankwise::app {

namespace {

constexpr std::size_t endpoints_max = 1024;
constexpr std::size_t queries_open_max = 65'536;
constexpr int receive_batch_max = 64;

std::string number_bytes(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

std::uint64_t bytes_number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

/// One whole message; false when there is none.
template <std::size_t Frames>
bool receive_frames(zmq::socket_t& socket, std::array<std::string, Frames>& frames, std::size_t& count) {
  count = 0;
  zmq::message_t frame;
  do {
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) {
      return false;
    }
    if (count < Frames) {
      frames[count] = frame.to_string();
    }
    ++count;
  } while (frame.more());
  return true;
}

void prepare(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::sndhwm, static_cast<int>(queries_open_max));
  socket.set(zmq::sockopt::rcvhwm, static_cast<int>(queries_open_max));
}

} // namespace

tl::expected<engine_kv_server, std::string> engine_kv_server::listen(zmq::context_t& context,
                                                                     const std::string& endpoint) {
  try {
    engine_kv_server server;
    server.socket_ = zmq::socket_t(context, zmq::socket_type::router);
    prepare(server.socket_);
    server.socket_.bind(endpoint);
    return server;
  } catch (const zmq::error_t& error) {
    return tl::unexpected(endpoint + ": " + error.what());
  }
}

void engine_kv_server::receive(const on_query& handle) {
  std::array<std::string, 3> frames;
  std::size_t count = 0;
  for (int i = 0; i < receive_batch_max && receive_frames(socket_, frames, count); ++i) {
    if (count != 3 || frames[1].size() != 8 || frames[2].size() != 8 || askers_.size() >= queries_open_max) {
      continue; // the asker's own time limit ends it
    }
    const std::uint64_t query = ++queries_;
    askers_.emplace(query, asker{frames[0], bytes_number(frames[1])});
    handle(static_cast<std::int64_t>(bytes_number(frames[2])), query);
  }
}

void engine_kv_server::answer(std::uint64_t query, bool ready, std::string_view text) {
  const auto found = askers_.find(query);
  if (found == askers_.end()) {
    return;
  }
  const std::string id = number_bytes(found->second.id);
  const std::string state(1, ready ? '\1' : '\0');
  // An asker that is gone makes the router drop the frames.
  socket_.send(zmq::buffer(found->second.identity), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
  socket_.send(zmq::buffer(id), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
  socket_.send(zmq::buffer(state), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
  socket_.send(zmq::const_buffer(text.data(), text.size()), zmq::send_flags::dontwait);
  askers_.erase(found);
}

tl::expected<void, std::string> engine_kv_client::ask(const std::string& endpoint, std::int64_t room,
                                                      std::uint64_t query) {
  try {
    auto found = sockets_.find(endpoint);
    if (found == sockets_.end()) {
      if (sockets_.size() >= endpoints_max) {
        return tl::unexpected(std::string("too many bootstrap endpoints"));
      }
      zmq::socket_t socket(context_, zmq::socket_type::dealer);
      prepare(socket);
      socket.connect(endpoint);
      found = sockets_.emplace(endpoint, std::move(socket)).first;
    }
    const std::string id = number_bytes(query);
    const std::string room_bytes = number_bytes(static_cast<std::uint64_t>(room));
    if (!found->second.send(zmq::buffer(id), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
      return tl::unexpected("the queue to " + endpoint + " is full");
    }
    found->second.send(zmq::buffer(room_bytes), zmq::send_flags::dontwait);
    return {};
  } catch (const zmq::error_t& error) {
    return tl::unexpected(endpoint + ": " + error.what());
  }
}

std::vector<zmq::socket_t*> engine_kv_client::sockets() {
  std::vector<zmq::socket_t*> result;
  for (auto& [endpoint, socket] : sockets_) {
    result.push_back(&socket);
  }
  return result;
}

void engine_kv_client::receive(zmq::socket_t& socket, const on_answer& handle) {
  std::array<std::string, 3> frames;
  std::size_t count = 0;
  for (int i = 0; i < receive_batch_max && receive_frames(socket, frames, count); ++i) {
    if (count == 3 && frames[0].size() == 8 && frames[1].size() == 1) {
      handle(bytes_number(frames[0]), frames[1][0] == '\1', frames[2]);
    }
  }
}

} // namespace rankwise::app
