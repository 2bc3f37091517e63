#include "io/zmq/registrations.hpp"

#include "io/zmq/zmq_message.hpp"
#include "wire/sglang/handshake.hpp"

#include <algorithm>
#include <string>

namespace rankwise::io {

namespace sg = wire::sglang;

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
    return refuse("registration: " + std::string{sg::to_string(error.kind)} + " " + error.field);
  }
  const int fd = payload.get(ZMQ_SRCFD);
  if (e.registered && e.peer_fd != fd) {
    links_.lose(e, "it registered again");
    links_.bring_back(e);
  }
  e.registered = true;
  e.peer_fd = fd;
  std::erase(e.other_fds, fd);

  auto event = rank_links::event_of(e, link_event_kind::registered, {});
  event.kv_capacity = registration->kv_cache_size_tokens;
  event.max_running = registration->max_num_seqs;
  event.chunk_tokens = registration->max_num_batched_tokens;
  event.data_parallel_size = registration->data_parallel_size;
  event.max_model_len = registration->max_model_len;
  event.engine_version = registration->engine_version;
  event.model_name = registration->instance_id;
  event.layouts = registration->positional_layouts;
  if (event.data_parallel_size > 1 || e.id.rank > 0)
    directory_.note_several_ranks(e.id.pool);
  e.registration = event;
  context_.callbacks.on_link_event(std::move(event));
  links_.tell_records();
}

} // namespace rankwise::io
