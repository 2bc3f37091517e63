#include "io/zmq/registrations.hpp"

#include "io/zmq/zmq_message.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/registration_check.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace rankwise::io {

namespace sg = wire::sglang;

namespace {

link_event event_of(const rank_endpoint& e, const sg::registration& r) {
  auto event = rank_links::event_of(e, link_event_kind::registered, {});
  event.kv_capacity = r.kv_cache_size_tokens;
  event.max_running = r.max_num_seqs;
  event.chunk_tokens = r.max_num_batched_tokens;
  event.data_parallel_size = r.data_parallel_size;
  event.data_parallel_rank = r.data_parallel_rank;
  event.max_model_len = r.max_model_len;
  event.engine_version = r.engine_version;
  event.model_name = r.instance_id;
  event.layouts = r.positional_layouts;
  return event;
}

} // namespace

bool registrations::read(rank_endpoint& e) {
  for (int i = 0; i < context_.options.frames_per_round_max; ++i) {
    zmq::message_t identity;
    zmq::message_t payload;
    {
      const std::lock_guard guard{e.mutex};
      if (e.closed || !e.input.recv(identity, zmq::recv_flags::dontwait))
        return false;
      if (!identity.more())
        continue;
      receive_rest(e.input, payload);
    }
    take(e, view(identity), payload);
  }
  return true;
}

void registrations::take(rank_endpoint& e, std::string_view identity, zmq::message_t& payload) {
  const auto refuse = [&](std::string cause) {
    context_.callbacks.on_link_event(rank_links::event_of(e, link_event_kind::refused, std::move(cause)));
  };
  const auto registration = sg::decode_registration(view(payload));
  if (identity != e.identity)
    return refuse("another identity connected to its endpoint");
  if (!registration) {
    const auto& error = registration.error();
    context_.counters.count_malformed(error.kind);
    return refuse("registration: " + sg::to_string(error));
  }
  if (auto fault = sg::fault_of(*registration, e.id.rank, context_.pool_of(e.id).ranks_max); !fault.empty())
    return refuse("registration: " + fault);
  const int fd = payload.get(ZMQ_SRCFD);
  auto event = event_of(e, *registration);
  e.contested.reset();
  if (auto cause = links_.contradiction_of(event); !cause.empty()) {
    refuse("registration: " + cause);
    e.contested = rank_endpoint::contested_registration{std::move(event), fd};
    return;
  }
  accept(e, std::move(event), fd);
}

void registrations::accept(rank_endpoint& e, link_event event, int fd) {
  const bool returned = e.registered && e.peer_fd != fd;
  e.registration = event;
  if (returned) {
    links_.lose(e, "it registered again");
    links_.bring_back(e);
  }
  e.registered = true;
  e.peer_fd = fd;
  std::erase(e.other_fds, fd);
  event.epoch = e.epoch.load();
  if (event.data_parallel_size > 1 || e.id.rank > 0)
    directory_.note_several_ranks(e.id.pool);
  e.registration = event;
  context_.callbacks.on_link_event(std::move(event));
  links_.tell_records();
}

void registrations::take_contested() {
  const auto endpoints = links_.all(); // a copy: each that is taken may change it
  for (const auto& e : endpoints) {
    if (!e->contested || !links_.contradiction_of(e->contested->registration).empty())
      continue;
    auto contested = *std::exchange(e->contested, std::nullopt);
    accept(*e, std::move(contested.registration), contested.fd);
  }
}

} // namespace rankwise::io
