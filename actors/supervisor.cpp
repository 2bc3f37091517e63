#include "actors/supervisor.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace rankwise {

namespace {

using self_ptr = supervisor_actor::stateful_pointer<supervisor_state>;
using timer = handler_timer<supervisor_actor::stateful_base<supervisor_state>>;
using child = supervisor_state::child;
using child_key = supervisor_state::child_key;

const child_key forwarder_key{"load_forwarder", {}};
const child_key introspector_key{"introspector", {}};

child_key manager_key(std::uint16_t index) {
  return {"request_manager", {0, index}};
}

child_key controller_key(std::uint16_t pool) {
  return {"dp_controller", {pool, 0}};
}

std::string name_of(self_ptr self, const child_key& key) {
  const auto& pools = self->state.config.pools;
  if (key.first == "dp_controller")
    return pools[key.second.pool].name;
  if (key.first == "dp_rank")
    return pools[key.second.pool].name + "/" + std::to_string(key.second.rank);
  if (key.first == "request_manager" && self->state.config.managers > 1)
    return std::to_string(key.second.rank);
  return {};
}

bool can_be_parked(const child_key& key) {
  return key.first == "dp_rank" || key.first == "load_forwarder" || key.first == "introspector";
}

void note(self_ptr self, std::string kind, const child_key& key, std::string change, std::string cause) {
  if (auto* events = self->state.config.events) {
    const auto name = name_of(self, key);
    events->add(self->clock().now(), std::move(kind), name.empty() ? key.first : key.first + " " + name,
                std::move(change), std::move(cause));
  }
}

template <class Handle>
Handle handle_of(self_ptr self, const child_key& key) {
  const auto found = self->state.children.find(key);
  if (found == self->state.children.end() || found->second.handle == nullptr)
    return {};
  return caf::actor_cast<Handle>(found->second.handle);
}

peer_changed news_of(self_ptr self, const child_key& key) {
  const auto& c = self->state.children.at(key);
  return {key.first, key.second.pool, key.second.rank, c.owner, c.handle, c.incarnation};
}

/// Calls `f` with every RequestManager that lives, in their order.
template <class F>
void for_managers(self_ptr self, F&& f) {
  for (std::uint16_t index = 0; index < self->state.config.managers; ++index)
    if (const auto manager = handle_of<request_manager_actor>(self, manager_key(index)))
      f(manager, manager_key(index));
}

/// Calls `f` with the actor of every rank that has one.
template <class F>
void for_ranks(self_ptr self, F&& f) {
  for (const auto& [key, c] : self->state.children)
    if (key.first == "dp_rank" && c.handle != nullptr)
      f(caf::actor_cast<dp_rank_actor>(c.handle), key.second);
}

template <class Handle>
void adopt(self_ptr self, const child_key& key, const Handle& handle) {
  auto& c = self->state.children[key];
  c.handle = caf::actor_cast<caf::strong_actor_ptr>(handle);
  ++c.incarnation;
  c.parked = false;
  if (!c.policy)
    c.policy.emplace(key == forwarder_key ? self->state.config.forwarder_restarts : self->state.config.restarts);
  self->template monitor<caf::message_priority::high>(handle);
}

/// Of the pool whose prompts are looked at for equal beginnings: the one that computes them.
std::uint32_t prefix_block_tokens_of(const std::vector<core::pool_options>& pools) {
  for (const auto& pool : pools)
    if (pool.role != core::pool_role::decode)
      return pool.prefix_block_tokens;
  return 0;
}

void start_manager(self_ptr self, std::uint16_t index) {
  auto& st = self->state;
  const auto key = manager_key(index);
  const auto owner_before = std::exchange(st.children[key].owner, ++st.owners_given);
  request_manager_config config;
  config.name = name_of(self, key);
  config.table = st.config.requests;
  config.table.owner = st.owners_given;
  config.table.prefix_block_tokens = prefix_block_tokens_of(st.config.pools);
  config.table.seed = st.random();
  config.table.streams_max = (st.config.requests.streams_max + st.config.managers - 1) / st.config.managers;
  config.pool_count = st.config.pools.size();
  config.sink = st.config.sink;
  config.history = st.config.history;
  config.backlog = std::make_shared<manager_backlog>();
  auto backlog = config.backlog;
  const auto handle = self->spawn(request_manager, std::move(config));
  adopt(self, key, handle);
  const auto news = news_of(self, key);
  st.config.directory->set(index, actor_directory::manager_entry{handle, std::move(backlog), news.owner});
  if (owner_before != 0 && st.config.sink != nullptr)
    st.config.sink->fail_owner(owner_before, {core::outcome_kind::failed, core::failure::request_manager_restarted,
                                              "RequestManager was restarted: " + st.children[key].last_error, 0});
  for (std::uint16_t pool = 0; pool < st.config.pools.size(); ++pool) {
    if (auto controller = handle_of<dp_controller_actor>(self, controller_key(pool))) {
      self->send(controller, news);
      self->send(handle, news_of(self, controller_key(pool)));
    }
  }
  for_ranks(self, [&](const dp_rank_actor& rank, core::rank_id) { self->send(rank, news); });
}

void start_controller(self_ptr self, std::uint16_t pool) {
  auto& st = self->state;
  const auto key = controller_key(pool);
  dp_controller_config config;
  config.pool = st.config.pools[pool];
  config.pool.term = st.children[key].incarnation + 1;
  config.events = st.config.events;
  config.on_decision = st.config.on_decision;
  if (pool < st.config.recorders.size())
    config.recorders = st.config.recorders[pool];
  for (const auto& [other, c] : st.children)
    if (other.first == "dp_rank" && other.second.pool == pool && c.registered && !c.lost && !c.parked)
      ++config.ranks_expected; // also one whose actor is being restarted: it will announce itself
  for_managers(self, [&](const request_manager_actor&, const child_key&) { ++config.owners_expected; });
  auto handle = self->spawn(dp_controller, std::move(config));
  adopt(self, key, handle);
  const auto news = news_of(self, key);
  // The controller must know the owners before their first orders, and the ranks before the ledger is rebuilt. A
  // RequestManager that is being restarted introduces itself later; the ranks are told now.
  for_managers(self, [&](const request_manager_actor&, const child_key& manager) {
    self->send(handle, news_of(self, manager));
  });
  for_ranks(self, [&](const dp_rank_actor& rank, core::rank_id id) {
    if (id.pool == pool)
      self->send(rank, news);
  });
  for_managers(self, [&](const request_manager_actor& manager, const child_key&) { self->send(manager, news); });
  if (auto forwarder = handle_of<load_forwarder_actor>(self, forwarder_key))
    self->send(forwarder, news);
}

void start_forwarder(self_ptr self) {
  auto& st = self->state;
  load_forwarder_config config;
  config.board = st.config.board;
  config.pool_count = st.config.pools.size();
  config.enabled = st.config.load_forwarding;
  auto handle = st.config.detach_forwarder ? self->spawn<caf::detached>(load_forwarder, std::move(config))
                                           : self->spawn(load_forwarder, std::move(config));
  adopt(self, forwarder_key, handle);
  st.config.directory->set(handle);
  for (std::uint16_t pool = 0; pool < st.config.pools.size(); ++pool)
    if (handle_of<dp_controller_actor>(self, controller_key(pool)))
      self->send(handle, news_of(self, controller_key(pool)));
}

void start_introspector(self_ptr self) {
  introspector_config config;
  config.directory = self->state.config.directory;
  config.loads = self->state.config.loads;
  auto handle = self->spawn(introspector, std::move(config));
  adopt(self, introspector_key, handle);
  self->state.config.directory->set(handle);
}

void start_rank(self_ptr self, core::rank_id id) {
  auto& st = self->state;
  const child_key key{"dp_rank", id};
  dp_rank_config config;
  config.id = id;
  config.pool_name = st.config.pools[id.pool].name;
  config.timing = st.config.rank_timing;
  config.boot = st.config.boot;
  config.link = st.config.link;
  config.events = st.config.events;
  if (auto& books = st.children[key].books; books == nullptr)
    books = std::make_shared<rank_books>();
  config.books = st.children[key].books;
  auto handle = self->spawn(dp_rank, std::move(config));
  adopt(self, key, handle);
  for_managers(self, [&](const request_manager_actor&, const child_key& manager) {
    self->send(handle, news_of(self, manager));
  });
  if (handle_of<dp_controller_actor>(self, controller_key(id.pool)))
    self->send(handle, news_of(self, controller_key(id.pool)));
  auto& c = st.children[key];
  if (c.incarnation > 1 && c.hello)
    self->send(handle, *c.hello);
  if (c.incarnation > 1 && c.registered) {
    self->send(handle, *c.registered);
    if (c.lost) // maybe while nobody was there to hear it
      self->send(handle, *c.lost);
  }
  if (c.drain)
    caf::anon_send(handle, *c.drain); // nobody waits for its answer
}

/// A rank that has no actor which could say it: what it ran belongs to nobody.
void tell_rank_gone(self_ptr self, core::rank_id id, const child& c, core::rank_state state, const std::string& cause) {
  const auto epoch = c.registered ? c.registered->epoch : 0;
  if (auto controller = handle_of<dp_controller_actor>(self, controller_key(id.pool)))
    self->send(controller, rank_not_up{id, epoch, state, cause});
  for_managers(self, [&](const request_manager_actor& manager, const child_key&) {
    self->send(manager, rank_lost{id, epoch, cause});
  });
}

void wish_drain(self_ptr self, child& c, std::optional<rank_command> wish, core::rank_id rank) {
  if (c.drain.has_value() == wish.has_value()) {
    c.drain = std::move(wish);
    return;
  }
  c.drain = std::move(wish);
  if (self->state.config.on_drain_wish)
    self->state.config.on_drain_wish(rank, c.drain.has_value());
}

caf::result<rank_command_result> on_command(self_ptr self, const rank_command& m) {
  auto& st = self->state;
  const child_key key{"dp_rank", m.rank};
  const auto found = st.children.find(key);
  if (found == st.children.end())
    return rank_command_result{false, false, core::rank_state::down, "there is no such rank"};
  auto& c = found->second;
  if (m.wish == rank_wish::drain)
    wish_drain(self, c, m, m.rank);
  else if (m.wish == rank_wish::undrain || c.handle == nullptr)
    wish_drain(self, c, std::nullopt, m.rank); // a removal may be refused, then the rank stays drained
  if (c.handle != nullptr)
    return self->delegate(caf::actor_cast<dp_rank_actor>(c.handle), m);
  if (m.wish != rank_wish::remove)
    return rank_command_result{m.wish == rank_wish::drain, true, core::rank_state::parked,
                               "has no actor just now; its next one is told"};
  tell_rank_gone(self, m.rank, c, core::rank_state::removed, "an operator removed it");
  if (c.registered)
    st.config.link->close(m.rank, c.registered->epoch);
  note(self, "rank_state", key, "removed", "an operator removed it");
  st.children.erase(found);
  return rank_command_result{true, true, core::rank_state::removed, "is removed"};
}

void start_child(self_ptr self, const child_key& key) {
  if (key.first == "request_manager")
    start_manager(self, key.second.rank);
  else if (key == forwarder_key)
    start_forwarder(self);
  else if (key == introspector_key)
    start_introspector(self);
  else if (key.first == "dp_controller")
    start_controller(self, key.second.pool);
  else if (key.first == "dp_rank")
    start_rank(self, key.second);
}

void on_down(self_ptr self, const caf::down_msg& m) {
  auto& st = self->state;
  for (auto& [key, c] : st.children) {
    if (c.handle == nullptr || c.handle->address() != m.source)
      continue;
    c.handle = nullptr;
    if (m.reason == caf::exit_reason::normal && key.first == "dp_rank") {
      wish_drain(self, c, std::nullopt, key.second);
      st.children.erase(key); // an operator removed it
      return;
    }
    c.last_error = self->system().render(m.reason);
    if (m.reason == caf::exit_reason::user_shutdown || m.reason == caf::exit_reason::kill)
      return; // the node is stopping
    c.died_at = self->clock().now();
    if (key.first == "dp_rank")
      if (auto controller = handle_of<dp_controller_actor>(self, controller_key(key.second.pool)))
        self->send(controller, rank_actor_lost{key.second});
    const auto decision = c.policy->on_death(self->clock().now(), st.random);
    if (decision.restart) {
      ++c.restarts;
      spdlog::warn("event=actor_restart role={} name={} restarts={} backoff_ms={:.1f} cause={:?}", key.first,
                   name_of(self, key), c.restarts, core::to_seconds(decision.backoff) * 1e3, c.last_error);
      note(self, "actor_restart", key, "restart " + std::to_string(c.restarts), c.last_error);
      self->delayed_send(self, decision.backoff, restart_child{key.first, key.second});
      return;
    }
    if (can_be_parked(key)) {
      c.parked = true;
      spdlog::error("event=actor_parked role={} name={} retry_s={:.0f} cause={:?}", key.first, name_of(self, key),
                    core::to_seconds(st.config.park_retry), c.last_error);
      note(self, "actor_parked", key, "parked", c.last_error);
      if (key.first == "dp_rank")
        tell_rank_gone(self, key.second, c, core::rank_state::parked, "its actor crashed too often");
      self->delayed_send(self, st.config.park_retry, restart_child{key.first, key.second});
      return;
    }
    if (!st.fatal && st.config.on_fatal) {
      st.fatal = true;
      st.config.on_fatal(key.first + " " + name_of(self, key) + " crashed more than " +
                         std::to_string(st.config.restarts.restarts_max) + " times in " +
                         std::to_string(static_cast<int>(core::to_seconds(st.config.restarts.window))) +
                         " s, last: " + c.last_error);
    }
    return;
  }
}

void on_link_event(self_ptr self, link_event& e) {
  auto& st = self->state;
  if (e.rank.pool >= st.config.pools.size() || e.rank.rank >= st.config.pools[e.rank.pool].ranks_max) {
    spdlog::error("event=rank_refused pool={} rank={} cause=\"beyond ranks_max\"", e.rank.pool, e.rank.rank);
    return;
  }
  const child_key key{"dp_rank", e.rank};
  if (!st.children.contains(key)) {
    if (e.kind != link_event_kind::hello && e.kind != link_event_kind::restored)
      return;
    const auto& drained = st.config.drained;
    if (e.kind == link_event_kind::restored && std::find(drained.begin(), drained.end(), e.rank) != drained.end())
      st.children[key].drain = rank_command{e.rank, rank_wish::drain, {}, false};
    start_rank(self, e.rank);
  }
  auto& c = st.children[key];
  if (e.kind == link_event_kind::lost) {
    if (c.registered && c.registered->epoch == e.epoch)
      c.lost = e;
  } else if (e.kind != link_event_kind::refused) {
    c.lost.reset();
  }
  if (e.kind == link_event_kind::registered || e.kind == link_event_kind::restored) {
    c.registered = e;
    c.hello.reset();
  } else if (e.kind == link_event_kind::reconnected) {
    if (c.registered) {
      c.registered->kind = link_event_kind::registered;
      c.registered->epoch = e.epoch;
    }
  } else if (e.kind == link_event_kind::hello) {
    c.registered.reset();
    c.hello = e;
    wish_drain(self, c, std::nullopt, e.rank);
  }
  if (c.handle != nullptr)
    self->send(caf::actor_cast<dp_rank_actor>(c.handle), std::move(e));
}

} // namespace

supervisor_actor::behavior_type supervisor(self_ptr self, supervisor_config config) {
  auto& st = self->state;
  st.config = std::move(config);
  st.random.seed(st.config.seed);
  end_on_exception(self);
  self->set_down_handler([=](caf::down_msg& m) { on_down(self, m); });
  self->set_exit_handler([=](caf::exit_msg& m) {
    for (auto& [key, c] : self->state.children)
      if (c.handle != nullptr)
        self->send_exit(caf::actor_cast<caf::actor>(c.handle), m.reason);
    self->quit(m.reason);
  });
  st.config.directory->set(caf::actor_cast<supervisor_actor>(self));
  for (std::uint16_t pool = 0; pool < st.config.pools.size(); ++pool)
    start_controller(self, pool);
  for (std::uint16_t index = 0; index < st.config.managers; ++index)
    start_manager(self, index);
  start_forwarder(self);
  start_introspector(self);

  return {
      [=](link_event& e) {
        timer t{self, self->state.stats};
        on_link_event(self, e);
      },
      [=](const rank_command& m) {
        timer t{self, self->state.stats};
        return on_command(self, m);
      },
      [=](const policy_change& m) -> caf::result<policy_change_result> {
        timer t{self, self->state.stats};
        auto& pools = self->state.config.pools;
        const auto controller = m.pool < pools.size() ? handle_of<dp_controller_actor>(self, controller_key(m.pool))
                                                      : dp_controller_actor{};
        if (controller == nullptr)
          return make_error(node_error::peer_missing, "dp_controller");
        pools[m.pool].policy = m.policy; // of its next incarnation
        return self->delegate(controller, m);
      },
      [=](const restart_child& m) {
        timer t{self, self->state.stats};
        const child_key key{m.role, m.rank};
        const auto found = self->state.children.find(key);
        if (found == self->state.children.end() || found->second.handle != nullptr)
          return;
        if (found->second.parked) {
          found->second.policy->reset();
          ++found->second.restarts;
        }
        start_child(self, key);
      },
      [=](const crash_child& m) {
        timer t{self, self->state.stats};
        const auto found = self->state.children.find({m.role, m.rank});
        if (found == self->state.children.end() || found->second.handle == nullptr)
          return;
        caf::anon_send(caf::actor_cast<caf::actor>(found->second.handle), crash_atom::value);
      },
      [=](list_atom) -> child_list {
        timer t{self, self->state.stats};
        child_list result;
        for (const auto& [key, c] : self->state.children) {
          child_row row;
          row.status.role = key.first;
          row.status.name = name_of(self, key);
          row.status.restarts = c.restarts;
          row.status.last_error = c.last_error;
          row.status.parked = c.parked;
          row.status.answered = false;
          row.status.state = c.parked ? "parked" : c.handle == nullptr ? "restarting" : "running";
          row.handle = c.handle;
          if (c.parked) {
            result.degraded = true;
            result.degraded_reason += (result.degraded_reason.empty() ? "" : ", ") + key.first +
                                      (row.status.name.empty() ? "" : " " + row.status.name) + " is parked";
          }
          result.children.push_back(std::move(row));
        }
        return result;
      },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        return make_status(self, self->state.stats, "supervisor", {}, "running");
      },
  };
}

} // namespace rankwise
