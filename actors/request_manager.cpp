#include "actors/request_manager.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace rankwise {

namespace {

using self_ptr = request_manager_actor::stateful_pointer<request_manager_state>;
using timer = handler_timer<request_manager_actor::stateful_base<request_manager_state>>;

// Deadlines are kept to this.
constexpr auto tick_period = std::chrono::milliseconds{10};

void dispatch(self_ptr self, core::leg_dispatch& d) {
  const auto way = self->state.ranks.find(d.rank);
  if (way == self->state.ranks.end())
    return; // the table sends to none that it was not told of
  dispatch_order order;
  order.handle = d.leg.handle;
  order.attempt = d.leg.attempt;
  order.sample = d.sample;
  order.epoch = d.epoch;
  order.request = std::move(d.request);
  if (d.bootstrap) {
    order.has_bootstrap = true;
    order.bootstrap = std::move(*d.bootstrap);
  }
  self->send(way->second, std::move(order));
}

/// One message for each rank.
void close_legs(self_ptr self, std::vector<core::leg_close>& closes) {
  std::stable_sort(closes.begin(), closes.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (auto from = closes.begin(); from != closes.end();) {
    close_order order;
    auto to = from;
    for (; to != closes.end() && to->rank == from->rank; ++to)
      (to->abort ? order.aborts : order.ended).push_back(to->leg);
    if (const auto way = self->state.ranks.find(from->rank); way != self->state.ranks.end())
      self->send(way->second, std::move(order));
    from = to;
  }
}

/// Sends what a call to the table left to be said, in the order in which others must hear it.
void flush(self_ptr self) {
  auto& st = self->state;
  auto& fx = st.effects;
  if (!fx.out.events.empty())
    st.config.sink->deliver(std::move(fx.out));
  for (std::size_t pool = 0; pool < fx.pools.size(); ++pool) {
    auto& orders = fx.pools[pool];
    if (orders.empty() || st.controllers[pool] == nullptr)
      continue;
    orders.owner = st.config.table.owner;
    self->send(st.controllers[pool], std::move(orders));
    orders = core::pool_orders{};
  }
  for (auto& d : fx.dispatches)
    dispatch(self, d);
  close_legs(self, fx.closes);
  if (fx.has_progress && st.controllers[fx.progress.rank.pool] != nullptr)
    self->send(st.controllers[fx.progress.rank.pool], std::move(fx.progress));
  fx.clear();
  if (!st.tick_pending && st.table->next_deadline()) {
    st.tick_pending = true;
    self->delayed_send(self, tick_period, tick_atom::value);
  }
}

} // namespace

request_manager_actor::behavior_type request_manager(self_ptr self, request_manager_config config) {
  auto& st = self->state;
  st.config = std::move(config);
  st.table.emplace(st.config.table, st.config.history);
  st.controllers.resize(st.config.pool_count);
  st.effects.pools.resize(st.config.pool_count);
  end_on_exception(self);

  return {
      [=](submit_request& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (s.config.backlog)
          s.config.backlog->submissions.fetch_sub(1, std::memory_order_relaxed);
        s.table->submit(m.stream, std::move(m.request), self->clock().now(), s.effects);
        flush(self);
      },
      [=](const cancel_request& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->cancel(m.stream, m.reason, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const abort_request& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->abort(m.rid, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const core::output_batch& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (s.config.backlog)
          s.config.backlog->batches.fetch_sub(1, std::memory_order_relaxed);
        if (m.rank.pool >= s.controllers.size())
          return;
        s.table->on_outputs(m, s.effects);
        flush(self);
      },
      [=](const core::placement& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->on_placement(m, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const core::refusal& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->on_refusal(m, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const rank_route& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        const auto rank = s.ranks[m.rank] = caf::actor_cast<dp_rank_actor>(m.handle);
        auto legs = s.table->on_rank_up(m.rank, m.epoch, self->clock().now(), s.effects);
        self->send(rank, legs_on_rank{s.config.table.owner, m.epoch, std::move(legs)});
        flush(self);
      },
      [=](const dispatch_failed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->on_dispatch_failed(m.rank, m.leg, m.reason, m.text, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const rank_lost& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->on_rank_lost(m.rank, m.epoch, m.cause, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.pool >= s.controllers.size())
          return;
        s.controllers[m.pool] = caf::actor_cast<dp_controller_actor>(m.handle);
        self->send(s.controllers[m.pool], s.table->on_controller_started(m.pool, m.incarnation, s.effects));
        flush(self);
      },
      [=](end_all_atom) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.table->end_all(core::failure::shutting_down, self->clock().now(), s.effects);
        flush(self);
      },
      [=](list_atom, std::uint64_t limit) -> request_list {
        timer t{self, self->state.stats};
        auto& s = self->state;
        return {s.table->open_streams(), s.table->rows(self->clock().now(), limit)};
      },
      [=](counts_atom) -> core::request_counts {
        timer t{self, self->state.stats};
        return self->state.table->counts();
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.tick_pending = false;
        s.table->on_tick(self->clock().now(), s.effects);
        flush(self);
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        return make_status(self, self->state.stats, "request_manager", self->state.config.name, "running");
      },
  };
}

} // namespace rankwise
