#include "io/zmq/rank_links.hpp"

#include "wire/sglang/registration_check.hpp"

#include <algorithm>
#include <utility>

namespace rankwise::io {

rank_links::rank_links(hub_context& context, engine_sockets& sockets, endpoint_directory& directory,
                       output_receiver& receiver, descriptor_poll& poll)
    : context_(context), sockets_(sockets), directory_(directory), receiver_(receiver), poll_(poll),
      newest_epochs_(endpoint_directory::slots_of(context.options.pools), 0) {}

link_event rank_links::event_of(const rank_endpoint& e, link_event_kind kind, std::string cause) {
  link_event event;
  event.kind = kind;
  event.rank = e.id;
  event.epoch = e.epoch.load();
  event.cause = std::move(cause);
  return event;
}

void rank_links::take_in(rank_endpoint_ptr endpoint) {
  poll_.add(endpoint->input.get(zmq::sockopt::fd), endpoint.get());
  poll_.add(endpoint->monitor.get(zmq::sockopt::fd), endpoint.get());
  directory_.put(endpoint); // from here on others may send on it
  receiver_.add(endpoint);
  live_.push_back(std::move(endpoint));
}

rank_endpoint_ptr rank_links::find(core::rank_id rank) const {
  const auto found =
      std::find_if(live_.begin(), live_.end(), [&](const rank_endpoint_ptr& e) { return e->id == rank; });
  return found == live_.end() ? nullptr : *found;
}

void rank_links::retire(core::rank_id rank) {
  const auto endpoint = find(rank);
  if (!endpoint)
    return;
  std::erase(live_, endpoint);
  shut(*endpoint);
  directory_.remove(endpoint);
  receiver_.look_for_closed();
}

void rank_links::retire_all() {
  for (auto& endpoint : live_)
    shut(*endpoint);
  live_.clear();
}

void rank_links::shut(rank_endpoint& e) {
  const std::lock_guard guard{e.mutex};
  e.closed = true; // the receiver closes `output` when it sees this
  poll_.remove(e.input.get(zmq::sockopt::fd));
  poll_.remove(e.monitor.get(zmq::sockopt::fd));
  sockets_.close_input(e);
}

void rank_links::lose(rank_endpoint& e, std::string cause) {
  {
    // Whatever waits was meant for the process that is gone; its requests move or end.
    const std::lock_guard guard{e.mutex};
    if (std::exchange(e.lost, true))
      return;
    e.queue.clear();
  }
  context_.callbacks.on_link_event(event_of(e, link_event_kind::lost, std::move(cause)));
}

void rank_links::bring_back(rank_endpoint& e) {
  if (auto cause = contradiction_of(e.registration); !cause.empty()) {
    if (!std::exchange(e.return_refused, true))
      context_.callbacks.on_link_event(event_of(e, link_event_kind::refused, "back without HELLO: " + cause));
    return;
  }
  e.return_refused = false;
  {
    const std::lock_guard guard{e.mutex};
    if (!std::exchange(e.lost, false))
      return;
    e.epoch = next_epoch(e.id);
    e.given_up = false;
  }
  context_.callbacks.on_link_event(event_of(e, link_event_kind::reconnected, "reconnected without HELLO"));
  tell_records();
}

void rank_links::bring_back_refused() {
  for (const auto& e : live_)
    if (e->return_refused && e->peer_fd >= 0)
      bring_back(*e);
}

std::string rank_links::contradiction_of(const link_event& r) const {
  namespace sg = wire::sglang;
  const auto place_of = [](const link_event& e) {
    return sg::engine_place{e.rank.rank, e.data_parallel_rank, e.data_parallel_size};
  };
  for (const auto& e : live_) {
    if (!e->registered || e->id == r.rank || e->id.pool != r.rank.pool)
      continue;
    {
      const std::lock_guard guard{e->mutex};
      if (e->lost)
        continue;
    }
    if (auto cause = sg::contradiction(place_of(r), place_of(e->registration)); !cause.empty())
      return cause;
  }
  return {};
}

void rank_links::carry_out(link_orders::orders orders) {
  for (const auto& [rank, epoch] : orders.closes) {
    if (const auto endpoint = directory_.find(rank); endpoint && endpoint->epoch.load() == epoch) {
      retire(rank);
      tell_records();
    }
  }
  for (auto& [rank, epoch, cause] : orders.give_ups) {
    if (const auto endpoint = directory_.find(rank); endpoint && endpoint->epoch.load() == epoch) {
      endpoint->given_up = true;
      lose(*endpoint, std::move(cause));
    }
  }
  for (const auto& endpoint : orders.heard_again)
    if (!endpoint->closed && endpoint->peer_fd >= 0)
      bring_back(*endpoint);
}

void rank_links::tell_records() const {
  if (!context_.callbacks.on_records)
    return;
  std::vector<rank_record> records;
  for (const auto& e : live_) {
    if (!e->registered)
      continue;
    auto& record = records.emplace_back(
        rank_record{context_.pool_of(e->id).name, e->identity, e->input_address, e->output_address, e->registration});
    record.registration.epoch = e->epoch.load();
  }
  context_.callbacks.on_records(std::move(records));
}

} // namespace rankwise::io
