#pragma once

#include "app/node/node_config.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// One node: the actors, the engine hub, the front and the admin server, put together.
namespace rankwise::app {

class node {
 public:
  /// Binds everything. Throws std::runtime_error with the address that could not be had.
  explicit node(node_config config);
  ~node();
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  [[nodiscard]] std::string grpc_address() const;
  [[nodiscard]] std::string admin_address() const;
  [[nodiscard]] std::string handshake_endpoint(std::size_t pool) const;
  [[nodiscard]] const node_config& config() const;

  /// True once every awaited rank of every pool takes work. Newest known, at most half a second old.
  [[nodiscard]] bool ready() const;
  /// Empty when it is ready; else which ranks of which pool are missing, or that it drains.
  [[nodiscard]] std::string not_ready_reason() const;
  /// Not empty: the node cannot go on, and why.
  [[nodiscard]] std::string fatal_reason() const;

  /// Refuse new requests, let the open ones end until `timeout`, end the rest. True: none was left.
  bool drain(std::chrono::milliseconds timeout);
  /// From another thread than the one that drains: its timeout is over now.
  void hurry() noexcept;
  void stop() noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace rankwise::app
