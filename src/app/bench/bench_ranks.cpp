#include "app/bench/bench_ranks.hpp"

#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/handshake.hpp"

#include <stdexcept>

namespace rankwise::app {

namespace sg = wire::sglang;

namespace {

std::vector<std::string> receive(zmq::socket_t& socket) {
  std::vector<std::string> frames;
  for (;;) {
    zmq::message_t frame;
    if (!socket.recv(frame, zmq::recv_flags::dontwait))
      return frames;
    frames.push_back(frame.to_string());
    if (!frame.more())
      return frames;
  }
}

} // namespace

bench_ranks::bench_ranks(std::uint16_t ranks, const std::string& folder) : layouts_(ranks) {
  for (auto* socket : {&handshake_, &input_, &output_})
    socket->set(zmq::sockopt::linger, 0);
  handshake_.bind("tcp://127.0.0.1:*");
  input_.bind("ipc://" + folder + "/bench.in");
  output_.bind("ipc://" + folder + "/bench.out");
}

std::vector<zmq::pollitem_t> bench_ranks::poll_items() {
  return {{handshake_.handle(), 0, ZMQ_POLLIN, 0},
          {input_.handle(), 0, ZMQ_POLLIN, 0},
          {output_.handle(), 0, ZMQ_POLLIN, 0}};
}

std::vector<int> bench_ranks::descriptors() {
  return {handshake_.get(zmq::sockopt::fd), input_.get(zmq::sockopt::fd), output_.get(zmq::sockopt::fd)};
}

void bench_ranks::add(const core::generate_request& request, std::uint64_t handle) {
  const auto rank = next_++ % layouts_.size();
  const auto type = static_cast<std::uint8_t>(0);
  const auto payload = layouts_[rank]->encode_add(request, sg::make_engine_rid(request.rid, {}, handle, 0), {});
  const auto identity = sg::encode_identity(static_cast<std::uint16_t>(rank));
  constexpr auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  if (!input_.send(zmq::buffer(identity), more) || !input_.send(zmq::buffer(&type, 1), more) ||
      !input_.send(zmq::buffer(payload), zmq::send_flags::dontwait))
    throw std::runtime_error("a rank does not take its requests");
}

void bench_ranks::read_handshake() {
  for (auto frames = receive(handshake_); frames.size() >= 2; frames = receive(handshake_)) {
    const auto message = sg::decode_handshake(frames[1]);
    if (!message || message->status != sg::handshake_status::hello)
      continue;
    const auto init =
        sg::encode_init({input_.get(zmq::sockopt::last_endpoint), output_.get(zmq::sockopt::last_endpoint)});
    handshake_.send(zmq::buffer(frames[0]), zmq::send_flags::sndmore);
    handshake_.send(zmq::buffer(init), zmq::send_flags::dontwait);
  }
}

void bench_ranks::read_input() {
  for (auto frames = receive(input_); frames.size() >= 2; frames = receive(input_)) {
    const auto rank = sg::decode_identity(frames[0]);
    const auto registration = sg::decode_registration(frames[1]);
    if (!rank || !registration || *rank >= layouts_.size())
      throw std::runtime_error("a rank registered what cannot be read");
    auto layout = sg::request_layout::from_registration(*registration);
    if (!layout)
      throw std::runtime_error("a rank's layout lacks " + layout.error().field);
    registered_ += layouts_[*rank] ? 0U : 1U;
    layouts_[*rank] = std::move(*layout);
  }
}

void bench_ranks::read(const std::function<void(const sg::token_output&)>& on_output, std::size_t batches_max) {
  if (!complete())
    read_handshake();
  else
    while (!receive(handshake_).empty()) {
    }
  read_input();
  zmq::message_t frame;
  for (std::size_t i = 0; i < batches_max && output_.recv(frame, zmq::recv_flags::dontwait); ++i) {
    const auto output = sg::decode_output({static_cast<const char*>(frame.data()), frame.size()});
    if (!output)
      throw std::runtime_error("an output cannot be read");
    if (const auto* tokens = std::get_if<sg::token_output>(&*output))
      on_output(*tokens);
  }
}

} // namespace rankwise::app
