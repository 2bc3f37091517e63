#pragma once

#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/output_codec.hpp"
#include "wire/sglang/request_codec.hpp"

#include <chrono>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <zmq.hpp>

/// The front-end's side of the dial-in wire, as small as can be: one input and one output endpoint for all ranks.
namespace rankwise::app {

namespace sglang = wire::sglang;

class fake_front_end {
 public:
  struct request {
    std::vector<std::int32_t> tokens;
    core::finish_reason finish = core::finish_reason::none;
    std::int32_t status = 0;
    std::string message;
    std::uint32_t rank = 0;
    std::uint32_t outputs_after_end = 0;
  };

  fake_front_end() {
    bind(handshake_, "tcp://127.0.0.1:*");
    bind(input_, "tcp://127.0.0.1:*");
    bind(output_, "tcp://127.0.0.1:*");
  }

  [[nodiscard]] std::string endpoint() { return handshake_.get(zmq::sockopt::last_endpoint); }

  /// Handles whatever comes until `done` or the time limit; returns done().
  template <class Done>
  bool run_until(Done done, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) {
        return false;
      }
      std::vector<zmq::pollitem_t> items{{handshake_.handle(), 0, ZMQ_POLLIN, 0},
                                         {input_.handle(), 0, ZMQ_POLLIN, 0},
                                         {output_.handle(), 0, ZMQ_POLLIN, 0}};
      zmq::poll(items, std::chrono::milliseconds(20));
      if (items[0].revents != 0) {
        on_handshake(receive(handshake_));
      }
      if (items[1].revents != 0) {
        on_input(receive(input_));
      }
      for (int i = 0; items[2].revents != 0 && i < 64; ++i) {
        zmq::message_t frame;
        if (!output_.recv(frame, zmq::recv_flags::dontwait)) {
          break;
        }
        on_output(frame.to_string());
      }
    }
    return true;
  }
  bool wait_for_ranks(std::size_t count) {
    return run_until([&] { return registrations.size() >= count && ready.size() >= count; });
  }

  void send(std::uint16_t rank, char type, const std::string& payload) {
    input_.send(zmq::buffer(sglang::encode_identity(rank)), zmq::send_flags::sndmore);
    input_.send(zmq::buffer(std::string(1, type)), zmq::send_flags::sndmore);
    input_.send(zmq::buffer(payload), zmq::send_flags::dontwait);
  }
  void add(std::uint16_t rank, const std::string& rid, std::size_t input_tokens, std::int32_t new_tokens,
           std::optional<core::bootstrap_info> bootstrap = std::nullopt) {
    core::generate_request asked;
    asked.rid = rid;
    asked.input_ids.assign(input_tokens, 7);
    asked.sampling.max_new_tokens = new_tokens;
    const auto layout = sglang::request_layout::from_registration(registrations.at(rank));
    ASSERT_TRUE(layout) << sglang::to_string(layout.error());
    send(rank, 0, layout->encode_add(asked, rid, bootstrap));
  }
  [[nodiscard]] bool ended(const std::string& rid) { return requests[rid].finish != core::finish_reason::none; }

  std::map<std::uint16_t, sglang::registration> registrations;
  std::set<std::uint16_t> ready;
  std::map<std::string, request> requests;
  std::vector<sglang::control_reply> replies;
  std::map<std::uint32_t, std::vector<sglang::load_tail>> loads;
  std::size_t loads_malformed = 0;
  std::size_t batches = 0;
  std::size_t deaths = 0;

 private:
  static std::vector<std::string> receive(zmq::socket_t& socket) {
    std::vector<std::string> frames;
    zmq::message_t frame;
    do {
      if (!socket.recv(frame, zmq::recv_flags::none)) {
        break;
      }
      frames.push_back(frame.to_string());
    } while (frame.more());
    return frames;
  }
  static void bind(zmq::socket_t& socket, const std::string& endpoint) {
    socket.set(zmq::sockopt::linger, 0);
    socket.bind(endpoint);
  }
  void on_handshake(const std::vector<std::string>& frames) {
    const auto message = sglang::decode_handshake(frames.at(1));
    ASSERT_TRUE(message) << sglang::to_string(message.error());
    if (message->status == sglang::handshake_status::ready) {
      ready.insert(*sglang::decode_identity(frames.at(0)));
      return;
    }
    const sglang::init_message init{input_.get(zmq::sockopt::last_endpoint), output_.get(zmq::sockopt::last_endpoint)};
    handshake_.send(zmq::buffer(frames.at(0)), zmq::send_flags::sndmore);
    handshake_.send(zmq::buffer(sglang::encode_init(init)), zmq::send_flags::dontwait);
  }
  void on_input(const std::vector<std::string>& frames) {
    const auto r = sglang::decode_registration(frames.at(1));
    ASSERT_TRUE(r) << sglang::to_string(r.error());
    registrations[*sglang::decode_identity(frames.at(0))] = *r;
  }
  void on_output(const std::string& frame) {
    const auto output = sglang::decode_output(frame);
    ASSERT_TRUE(output) << sglang::to_string(output.error());
    if (const auto* batch = std::get_if<sglang::token_output>(&*output)) {
      on_batch(*batch);
    } else if (const auto* reply = std::get_if<sglang::control_reply>(&*output)) {
      replies.push_back(*reply);
    } else if (std::holds_alternative<sglang::engine_dead>(*output)) {
      ++deaths;
    }
  }
  void on_batch(const sglang::token_output& batch) {
    ++batches;
    loads_malformed += batch.load_malformed ? 1U : 0U;
    if (batch.load) {
      loads[batch.engine_index.value_or(0)].push_back(*batch.load);
    }
    for (const auto& item : batch.items) {
      request& r = requests[item.rid];
      r.outputs_after_end += r.finish != core::finish_reason::none ? 1U : 0U;
      for (std::uint32_t i = 0; i < item.token_count; ++i) {
        const auto token = batch.tokens[item.token_offset + i];
        const auto crc = sglang::rid_crc32(sglang::client_part(item.rid));
        EXPECT_EQ(token, sglang::expected_token(crc, r.tokens.size())) << item.rid;
        r.tokens.push_back(token);
      }
      r.finish = item.finish;
      r.status = item.finish_status;
      r.message = item.finish_message;
      r.rank = batch.engine_index.value_or(0);
    }
  }

  zmq::context_t context_{1};
  zmq::socket_t handshake_{context_, zmq::socket_type::router};
  zmq::socket_t input_{context_, zmq::socket_type::router};
  zmq::socket_t output_{context_, zmq::socket_type::pull};
};

} // namespace rankwise::app
