#include "io/zmq/handshakes.hpp"

#include "io/zmq/zmq_message.hpp"
#include "wire/sglang/handshake.hpp"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace rankwise::io {

namespace sg = wire::sglang;

namespace {

/// A bound tcp address as ranks of other machines reach it: on `host`, unless that is empty.
std::string advertised(const std::string& address, const std::string& host) {
  if (host.empty() || !address.starts_with("tcp://"))
    return address;
  return "tcp://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") +
         address.substr(address.rfind(':'));
}

} // namespace

handshakes::handshakes(hub_context& context, engine_sockets& sockets, rank_links& links)
    : context_(context), sockets_(sockets), links_(links) {
  for (const auto& pool : context.options.pools) {
    auto& p = pools_.emplace_back(pool_socket{sockets_.bind_handshake(pool), {}});
    p.address = p.socket.get(zmq::sockopt::last_endpoint);
  }
}

void handshakes::watch(descriptor_poll& poll) {
  for (auto& pool : pools_)
    poll.add(pool.socket.get(zmq::sockopt::fd), &pool);
}

bool handshakes::read_all() {
  bool more = false;
  for (std::uint16_t pool = 0; pool < pools_.size(); ++pool)
    more = read(pool) || more;
  return more;
}

bool handshakes::read(std::uint16_t pool) {
  auto& socket = pools_[pool].socket;
  for (int i = 0; i < context_.options.frames_per_round_max; ++i) {
    zmq::message_t identity;
    zmq::message_t payload;
    if (!socket.recv(identity, zmq::recv_flags::dontwait))
      return false;
    if (!identity.more())
      continue;
    receive_rest(socket, payload);
    take(pool, identity, payload);
  }
  return true;
}

void handshakes::take(std::uint16_t pool, zmq::message_t& identity, const zmq::message_t& payload) {
  const auto& options = context_.options.pools[pool];
  const auto rank = sg::decode_identity(view(identity));
  const auto message = sg::decode_handshake(view(payload));
  if (!rank || !message) {
    const auto& error = !rank ? rank.error() : message.error();
    context_.counters.count_malformed(error.kind);
    spdlog::warn("event=handshake_malformed pool={} kind={} field={}", options.name, sg::to_string(error.kind),
                 error.field);
    return;
  }
  if (*rank >= options.ranks_max) {
    spdlog::error("event=rank_refused pool={} rank={} cause=\"ranks_max is {}\"", options.name, *rank,
                  options.ranks_max);
    return;
  }
  if (message->status == sg::handshake_status::hello)
    welcome({pool, *rank}, identity, peer_address_of(payload));
}

void handshakes::welcome(core::rank_id rank, zmq::message_t& identity, std::string peer_address) {
  auto endpoint = std::make_shared<rank_endpoint>(rank, links_.next_epoch(rank), std::string{view(identity)},
                                                  context_.queue_limits());
  endpoint->peer_address = std::move(peer_address);
  try {
    sockets_.open(*endpoint, pools_[rank.pool].address);
  } catch (const zmq::error_t& e) {
    spdlog::error("event=rank_refused pool={} rank={} cause=\"cannot bind its endpoints: {}\"",
                  context_.pool_of(rank).name, rank.rank, e.what());
    return;
  }
  auto cause = cause_of_hello(*endpoint);
  links_.retire(rank);
  links_.take_in(endpoint);
  context_.callbacks.on_link_event(rank_links::event_of(*endpoint, link_event_kind::hello, std::move(cause)));
  answer(*endpoint, identity);
}

void handshakes::answer(const rank_endpoint& endpoint, zmq::message_t& identity) {
  const auto& host = context_.pool_of(endpoint.id).advertise_host;
  const auto init =
      sg::encode_init({advertised(endpoint.input_address, host), advertised(endpoint.output_address, host)});
  auto& socket = pools_[endpoint.id.pool].socket;
  if (socket.send(identity, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) [[maybe_unused]]
    const auto sent = socket.send(zmq::buffer(init), zmq::send_flags::dontwait);
}

/// Two engines with one rank number displace each other for ever: their operator must see a misconfigured launcher.
std::string handshakes::cause_of_hello(const rank_endpoint& arriving) const {
  const auto of = [](const std::string& address) { return address.empty() ? "" : " from " + address; };
  auto cause = "HELLO" + of(arriving.peer_address);
  const auto present = links_.find(arriving.id);
  if (!present || !present->registered || present->peer_fd < 0)
    return cause;
  cause += "; its rank number was in use by epoch " + std::to_string(present->epoch.load()) +
           of(present->peer_address) + ", whose link was alive: do two engines have one number?";
  spdlog::warn("event=rank_number_in_use pool={} rank={} epoch={} cause={:?}", context_.pool_of(arriving.id).name,
               arriving.id.rank, arriving.epoch.load(), cause);
  return cause;
}

} // namespace rankwise::io
