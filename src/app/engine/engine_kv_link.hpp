#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

/// How simulated prefill and decode ranks of different processes hand KV over: the decode rank asks the prefill rank's
/// port for a room and gets one answer. Frames: query [id 8 bytes, room 8 bytes], answer [id 8 bytes, 1 = ready | 0,
/// text]; numbers little-endian. It stands for NIXL or Mooncake in a real engine and is spoken by nobody else.
namespace rankwise::app {

/// The prefill rank's side.
class engine_kv_server {
 public:
  using on_query = std::function<void(std::int64_t room, std::uint64_t query)>;

  /// Errors: what the system says of the endpoint.
  [[nodiscard]] static tl::expected<engine_kv_server, std::string> listen(zmq::context_t& context,
                                                                          const std::string& endpoint);

  [[nodiscard]] zmq::socket_t& socket() noexcept { return socket_; }
  void receive(const on_query& handle);
  /// Unknown queries are ignored.
  void answer(std::uint64_t query, bool ready, std::string_view text);

 private:
  struct asker {
    std::string identity;
    std::uint64_t id = 0;
  };
  zmq::socket_t socket_;
  std::unordered_map<std::uint64_t, asker> askers_;
  std::uint64_t queries_ = 0;
};

/// The decode side, one per process: a socket per prefill rank that was ever asked.
class engine_kv_client {
 public:
  using on_answer = std::function<void(std::uint64_t query, bool ready, std::string_view text)>;

  explicit engine_kv_client(zmq::context_t& context) : context_(context) {}

  /// Errors: what the system says of the endpoint, or too many endpoints.
  [[nodiscard]] tl::expected<void, std::string> ask(const std::string& endpoint, std::int64_t room,
                                                    std::uint64_t query);
  [[nodiscard]] std::vector<zmq::socket_t*> sockets();
  void receive(zmq::socket_t& socket, const on_answer& handle);

 private:
  zmq::context_t& context_;
  std::map<std::string, zmq::socket_t> sockets_;
};

} // namespace rankwise::app
