#pragma once

#include "core/request/request.hpp"
#include "wire/sglang/output_codec.hpp"
#include "wire/sglang/request_codec.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

/// The least that can stand between engine ranks and a gRPC front: what the node is measured against.
namespace rankwise::app {

/// Handshake, one input ROUTER and one output PULL for all ranks, round robin, no ledger, no epochs, no supervision.
/// Belongs to one thread.
class bench_ranks {
 public:
  /// `folder` holds the data sockets, as the node's state folder does.
  bench_ranks(std::uint16_t ranks, const std::string& folder);

  [[nodiscard]] std::string handshake_endpoint() const { return handshake_.get(zmq::sockopt::last_endpoint); }
  [[nodiscard]] bool complete() const noexcept { return registered_ == layouts_.size(); }

  /// Three sockets to poll.
  [[nodiscard]] std::vector<zmq::pollitem_t> poll_items();
  /// Their file descriptors, which become readable once per change of state; read() must then empty them.
  [[nodiscard]] std::vector<int> descriptors();

  /// Sends to the next rank; the handle comes back in the rid of every output.
  void add(const core::generate_request& request, std::uint64_t handle);
  /// Takes what is there, but no more than `batches_max` batches; `on_output` per batch.
  void read(const std::function<void(const wire::sglang::token_output&)>& on_output, std::size_t batches_max);

 private:
  void read_handshake();
  void read_input();

  zmq::context_t context_{1};
  zmq::socket_t handshake_{context_, zmq::socket_type::router};
  zmq::socket_t input_{context_, zmq::socket_type::router};
  zmq::socket_t output_{context_, zmq::socket_type::pull};
  std::vector<std::optional<wire::sglang::request_layout>> layouts_; // by rank
  std::size_t registered_ = 0;
  std::size_t next_ = 0;
};

} // namespace rankwise::app
