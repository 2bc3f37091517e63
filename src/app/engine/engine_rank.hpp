#pragma once

#include "app/engine/engine_kv_link.hpp"
#include "app/engine/engine_options.hpp"
#include "sim/engine_rank_model.hpp"
#include "wire/sglang/request_codec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <zmq.hpp>

/// One simulated rank with its sockets: the model on one side, the dial-in wire on the other.
namespace rankwise::app {

class engine_rank {
 public:
  /// Decode rank: `rid` wants the KV of a room; the process asks and calls kv_arrived or kv_failed.
  struct kv_wish {
    std::string rid;
    core::bootstrap_info where;
  };

  /// Dials the handshake. Errors: an endpoint that is none, a port that is taken.
  [[nodiscard]] static tl::expected<engine_rank, std::string> dial(zmq::context_t& context,
                                                                   const engine_options& options, std::uint16_t rank);

  [[nodiscard]] std::uint16_t number() const noexcept { return number_; }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  /// The socket that brings the node's messages: first the handshake's, then the input.
  [[nodiscard]] zmq::socket_t& inbound() noexcept { return joined_ ? input_ : handshake_; }
  [[nodiscard]] std::optional<engine_kv_server>& kv_server() noexcept { return kv_server_; }
  [[nodiscard]] sim::engine_rank_model& model() noexcept { return model_; }
  /// What the model said since the last `flush`.
  [[nodiscard]] sim::rank_outputs& outputs() noexcept { return outputs_; }
  /// Whether it is to crash now, as a fault asks.
  [[nodiscard]] bool wants_to_crash() const noexcept;

  /// Reads INIT, says READY, registers. False: nothing came. Errors: an INIT that is no use.
  [[nodiscard]] tl::expected<bool, std::string> finish_handshake(zmq::context_t& context);
  /// Hands what came to the model, at most 64 messages; true when there may be more.
  bool receive(core::timestamp now);
  void receive_kv_queries(core::timestamp now);
  /// Sends the outputs; wishes for KV are appended to `wishes`.
  void flush(core::timestamp now, std::vector<kv_wish>& wishes);
  /// ENGINE_CORE_DEAD, best effort.
  void say_dead();

 private:
  engine_rank(const engine_options& options, std::uint16_t rank);

  void handle(core::timestamp now, std::string_view type, std::string_view payload);
  void handle(core::timestamp now, wire::sglang::add_request add);
  void handle(core::timestamp now, const wire::sglang::abort_request& abort);
  void handle(core::timestamp now, const wire::sglang::control_request& control);
  void refuse(std::string rid, std::string message);
  void send(std::string frame);
  [[nodiscard]] std::optional<wire::sglang::load_tail> load_tail(core::timestamp now);

  std::uint16_t number_;
  engine_faults faults_;
  std::uint32_t block_tokens_;
  wire::sglang::registration registration_;
  wire::sglang::command_decoder decoder_;
  sim::engine_rank_model model_;
  sim::rank_outputs outputs_;
  zmq::socket_t handshake_;
  zmq::socket_t input_;
  zmq::socket_t output_;
  std::optional<engine_kv_server> kv_server_;
  bool joined_ = false;
  std::optional<wire::sglang::load_tail> sampled_load_;
  core::timestamp sampled_at_{};
  std::uint64_t garbage_sent_ = 0;
};

} // namespace rankwise::app
