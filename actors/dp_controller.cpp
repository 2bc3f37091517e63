#include "actors/dp_controller.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>
#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

namespace rankwise {

namespace {

using self_ptr = dp_controller_actor::stateful_pointer<dp_controller_state>;
using timer = handler_timer<dp_controller_actor::stateful_base<dp_controller_state>>;

template <class Answer>
void answer_owner(self_ptr self, Answer&& answer) {
  const auto owner = self->state.owners.find(core::owner_of(answer.handle));
  if (owner != self->state.owners.end())
    self->send(owner->second, std::forward<Answer>(answer));
}

void tell_ejection(self_ptr self, const core::desk_effects::ejection& e) {
  auto& st = self->state;
  const auto kind = e.over ? "rank_ejection_over" : "rank_ejected";
  const auto change = e.over ? "gets work again" : "gets no work for a while";
  const auto cause = !e.over     ? "its engine ends most requests with errors"
                     : e.renewed ? "a new incarnation took its place"
                                 : "its time is over, errors count afresh";
  spdlog::log(e.over ? spdlog::level::info : spdlog::level::warn, "event={} pool={} rank={} epoch={} cause=\"{}\"",
              kind, st.config.pool.name, e.rank, e.epoch, cause);
  if (st.config.events != nullptr)
    st.config.events->add(self->clock().now(), kind, st.config.pool.name + "/" + std::to_string(e.rank), change, cause);
}

/// Sends what a call to the desk left to be said.
void flush(self_ptr self) {
  auto& fx = self->state.effects;
  for (auto& placed : fx.placed)
    answer_owner(self, std::move(placed));
  for (auto& refused : fx.refused)
    answer_owner(self, std::move(refused));
  for (const auto& ejection : fx.ejections)
    tell_ejection(self, ejection);
  fx.clear();
}

void tell_work(self_ptr self, const core::rank_work& work) {
  const auto& rank = self->state.ranks[work.rank];
  if (rank != nullptr)
    self->send(rank, outstanding_work{work.requests, work.prefill_tokens, work.prefilled_tokens, work.draining});
}

void take_owner(self_ptr self, const peer_changed& m) {
  auto& st = self->state;
  if (m.index >= st.owner_of_index.size())
    st.owner_of_index.resize(m.index + std::size_t{1});
  st.owners.erase(std::exchange(st.owner_of_index[m.index], m.owner));
  st.owners[m.owner] = caf::actor_cast<request_manager_actor>(m.handle);
  st.desk->owner_opened(m.index, m.owner, self->clock().now(), st.effects);
}

pool_view view_of(self_ptr self) {
  const auto& s = self->state;
  const auto& pool = s.desk->pool();
  pool_view v;
  v.pool = s.config.pool.index;
  v.name = s.config.pool.name;
  v.role = std::string{core::to_string(s.config.pool.role)};
  v.policy = pool.options().policy;
  v.waiting = s.desk->waiting();
  v.ranks_awaited = s.config.pool.ranks_awaited;
  v.ranks_up = static_cast<std::uint32_t>(pool.ranks_up());
  v.dp_size = pool.dp_size();
  v.charges = pool.charge_count();
  v.counts = pool.counts();
  v.ranks = pool.rows(self->clock().now());
  return v;
}

core::order_desk_options desk_options_of(self_ptr self) {
  const auto& config = self->state.config;
  core::order_desk_options options;
  options.pool = config.pool;
  options.recorders = config.recorders;
  options.ranks_expected = config.ranks_expected;
  options.owners_expected = config.owners_expected;
  if (config.on_decision) {
    options.on_decision = config.on_decision;
    options.decision_clock = [self] { return self->clock().now(); };
  }
  return options;
}

} // namespace

dp_controller_actor::behavior_type dp_controller(self_ptr self, dp_controller_config config) {
  auto& st = self->state;
  st.config = std::move(config);
  st.ranks.resize(st.config.pool.ranks_max);
  st.desk.emplace(desk_options_of(self));
  end_on_exception(self);
  self->delayed_send(self, st.desk->is_settling() ? st.config.settle_max : st.config.tick, tick_atom::value);

  return {
      [=](core::pool_orders& m) {
        timer t{self, self->state.stats};
        self->state.desk->take(std::move(m), self->clock().now(), self->state.effects);
        flush(self);
      },
      [=](const core::batch_progress& m) {
        timer t{self, self->state.stats};
        self->state.desk->take(m, self->clock().now(), self->state.effects);
        flush(self);
      },
      [=](const load_update& m) {
        timer t{self, self->state.stats};
        self->state.desk->take(m.reports, self->clock().now(), self->state.effects);
        flush(self);
      },
      [=](const rank_up& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.rank.rank.rank >= s.ranks.size())
          return;
        s.ranks[m.rank.rank.rank] = caf::actor_cast<dp_rank_actor>(m.handle);
        s.desk->rank_up(m.rank, self->clock().now(), s.effects);
        flush(self);
      },
      [=](const rank_not_up& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.rank.rank >= s.ranks.size())
          return;
        const auto now = self->clock().now();
        s.desk->rank_not_up(m.rank, m.epoch, m.state, now, s.effects);
        if (m.state == core::rank_state::draining)
          tell_work(self, s.desk->work_of(m.rank.rank, now));
        if (m.state == core::rank_state::parked || m.state == core::rank_state::removed)
          s.ranks[m.rank.rank] = nullptr;
        flush(self);
      },
      [=](const rank_actor_lost& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.rank.rank >= s.ranks.size())
          return;
        s.ranks[m.rank.rank] = nullptr;
        s.desk->rank_actor_lost(m.rank);
      },
      [=](core::owner_legs& m) {
        timer t{self, self->state.stats};
        self->state.desk->restore(std::move(m), self->clock().now(), self->state.effects);
        flush(self);
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        take_owner(self, m);
        flush(self);
      },
      [=](list_atom) -> pool_view {
        timer t{self, self->state.stats};
        return view_of(self);
      },
      [=](const placement_query& m) -> placement_list {
        timer t{self, self->state.stats};
        return {self->state.desk->pool().explain(m.rid), {}};
      },
      [=](const policy_change& m) -> policy_change_result {
        timer t{self, self->state.stats};
        auto before = self->state.desk->pool().options().policy;
        const bool done = self->state.desk->set_policy(m.policy, self->clock().now());
        return {done, std::move(before)};
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        const auto now = self->clock().now();
        s.desk->tick(now, s.effects);
        for (const auto& work : s.desk->work_to_tell(now))
          tell_work(self, work);
        flush(self);
        self->delayed_send(self, s.config.tick, tick_atom::value);
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        return make_status(self, self->state.stats, "dp_controller", self->state.config.pool.name,
                           self->state.desk->is_settling() ? "settling" : "running");
      },
  };
}

} // namespace rankwise
