#include "actors/request_manager.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>

#include <stdexcept>

namespace rankwise {

namespace {

using self_ptr = request_manager_actor::stateful_pointer<request_manager_state>;
using timer = handler_timer<request_manager_actor::stateful_base<request_manager_state>>;

// Deadlines are kept to this.
constexpr auto tick_period = std::chrono::milliseconds{10};

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
    pool_orders message;
    message.releases = std::move(orders.releases);
    message.ends = std::move(orders.ends);
    message.places = std::move(orders.places);
    message.commits = std::move(orders.commits);
    message.aborts_until = orders.aborts_until;
    self->send(st.controllers[pool], std::move(message));
  }
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
      [=](const leg_dispatched& m) {
        timer t{self, self->state.stats};
        self->state.table->on_dispatched(m.pool, m.handle, m.attempt);
      },
      [=](const aborts_done& m) {
        timer t{self, self->state.stats};
        self->state.table->on_aborts_done(m.pool, m.until);
      },
      [=](const rank_lost& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.doubtful)
          s.table->on_legs_doubtful(m.rank, m.epoch, m.handles, m.cause, self->clock().now(), s.effects);
        else
          s.table->on_rank_lost(m.rank, m.epoch, m.handles, m.cause, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.pool >= s.controllers.size())
          return;
        s.controllers[m.pool] = caf::actor_cast<dp_controller_actor>(m.handle);
        auto records = s.table->on_controller_restarted(m.pool, s.effects);
        self->send(s.controllers[m.pool],
                   restore_ledger{std::move(records.legs), std::move(records.ended), records.aborts_until});
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
        return make_status(self, self->state.stats, "request_manager", {}, "running");
      },
  };
}

} // namespace rankwise
