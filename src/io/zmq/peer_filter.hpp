#pragma once

#include "io/zmq/address_block.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

/// Who may connect to the engine sockets over tcp.
namespace rankwise::io {

/// Answers ZeroMQ's authentication requests (ZAP, RFC 27) of one context by the peer's address. Connections over ipc
/// are let in: the folder's permissions guard them.
class peer_filter {
 public:
  /// Sockets that set this ZAP domain are asked about.
  static constexpr const char* domain = "rankwise";

  /// Throws std::invalid_argument naming an entry that is neither an address nor a block.
  peer_filter(zmq::context_t& context, const std::vector<std::string>& allowed, std::atomic<std::uint64_t>& refused);
  ~peer_filter();
  peer_filter(const peer_filter&) = delete;
  peer_filter& operator=(const peer_filter&) = delete;

 private:
  void run();
  [[nodiscard]] bool allows(const std::string& address) const;

  std::vector<address_block> allowed_;
  std::atomic<std::uint64_t>& refused_;
  zmq::socket_t requests_;
  std::atomic<bool> running_{true};
  std::thread thread_;
};

} // namespace rankwise::io
