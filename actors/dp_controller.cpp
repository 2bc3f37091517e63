#include "actors/dp_controller.hpp"

#include "core/base/block_vector.hpp"
#include "messages/type_ids.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <caf/all.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace rankwise {

namespace {

using self_ptr = dp_controller_actor::stateful_pointer<dp_controller_state>;
using timer = handler_timer<dp_controller_actor::stateful_base<dp_controller_state>>;
using charged_leg = dp_controller_state::charged_leg;

std::string engine_rid_of(self_ptr self, core::request_handle handle, const charged_leg& leg) {
  return wire::sglang::make_engine_rid(*leg.request, leg.sample, handle, leg.attempt, self->state.config.boot);
}

void dispatch(self_ptr self, core::request_handle handle, const charged_leg& leg,
              const core::bootstrap_info* bootstrap) {
  dispatch_order order;
  order.handle = handle;
  order.attempt = leg.attempt;
  order.sample = leg.sample;
  order.epoch = leg.epoch;
  order.request = leg.request;
  if (bootstrap != nullptr) {
    order.has_bootstrap = true;
    order.bootstrap = *bootstrap;
  }
  // Without an actor the leg is taken back when the rank has one again.
  if (self->state.ranks[leg.rank] != nullptr)
    self->send(self->state.ranks[leg.rank], std::move(order));
}

// Select, charge, tell RequestManager, dispatch: in this order and without anything that can fail in between, so that a
// crash leaves either nothing or a leg that RequestManager knows of. False: it would better wait, and may.
bool place(self_ptr self, core::place_order& order, bool may_wait) {
  auto& st = self->state;
  const auto begin = self->clock().now();
  auto result = st.pool->place_or_wait(order, begin, may_wait);
  if (st.config.on_decision)
    st.config.on_decision(self->clock().now() - begin);
  if (std::holds_alternative<core::wait_for_rank>(result))
    return false;
  if (auto* refused = std::get_if<core::refusal>(&result)) {
    self->send(st.manager, std::move(*refused));
    return true;
  }
  auto& placed = std::get<core::placement>(result);
  auto& leg = st.legs[order.handle];
  leg = charged_leg{placed.rank.rank, placed.epoch, order.attempt, order.sample, order.hold, std::move(order.request)};
  self->send(st.manager, std::move(placed));
  if (!leg.held)
    dispatch(self, order.handle, leg, leg.request->bootstrap ? &*leg.request->bootstrap : nullptr);
  return true;
}

/// The decode leg of a pair does not: its prefill leg, which has a rank, would stand idle meanwhile.
bool may_wait_for_rank(self_ptr self, const core::place_order& order) {
  return !order.hold || self->state.config.pool.role != core::pool_role::decode;
}

/// An order of which the pool is too full, or which no rank would begin soon, waits with those who do already, when
/// there is room for that.
void place_or_wait(self_ptr self, core::place_order& order) {
  auto& st = self->state;
  const auto now = self->clock().now();
  const bool alone = st.waiting->size() == 0 && st.pool->has_room(order);
  if (alone && place(self, order, may_wait_for_rank(self, order)))
    return;
  const auto key = st.pool->waiting_order(order, now);
  const bool known = st.waiting->contains(order.handle) || st.legs.contains(order.handle); // it is refused below
  if (!known && !st.pool->has_room(order))
    if (const auto lower = st.waiting->make_room_for(key.priority, now))
      self->send(st.manager, st.pool->displaced(*lower, now));
  if (st.waiting->enter(order, now, key, st.pool->ranks_up()))
    return;
  const bool had_its_turn = order.attempt > 0; // and lost its rank
  if (known || had_its_turn || st.waiting->size() == 0 || !st.pool->has_room(order)) {
    place(self, order, false);
    return;
  }
  // There is room, but no place to wait, and nobody passes those who do: the next of all is given a rank as things are.
  const auto newcomer = order;
  st.waiting->squeeze_in(order, now, key, st.pool->ranks_up());
  if (st.pool->has_room(*st.waiting->next(now))) {
    auto first = st.waiting->take(now);
    place(self, first, false);
  } else if (const auto lower = st.waiting->make_room_for(key.priority, now)) {
    self->send(st.manager, st.pool->displaced(*lower, now));
  } else {
    st.waiting->leave(newcomer.handle);
    self->send(st.manager, st.pool->crowded_out(newcomer, now));
  }
}

/// After anything that may have made room.
void admit_waiting(self_ptr self) {
  auto& st = self->state;
  const auto now = self->clock().now();
  while (auto* next = st.waiting->next(now)) {
    const auto handle = next->handle;
    if (!st.pool->has_room(*next) || !place(self, *next, may_wait_for_rank(self, *next)))
      return;
    st.waiting->leave(handle);
  }
}

/// Has what a rank may still run aborted; keeps it for the next actor of the rank when there is none now.
void abort_ghosts(self_ptr self, std::uint16_t rank, core::rank_epoch epoch, std::vector<std::string> rids) {
  auto& st = self->state;
  if (st.ranks[rank] == nullptr) {
    auto& kept = st.ghosts[rank];
    kept.insert(kept.end(), std::make_move_iterator(rids.begin()), std::make_move_iterator(rids.end()));
    return;
  }
  self->send(st.ranks[rank], ghost_requests{epoch, std::move(rids)});
}

/// Tells RequestManager that it may forget these aborts; not while some are kept here, where they die with this actor.
void acknowledge_aborts(self_ptr self, std::uint64_t until) {
  auto& st = self->state;
  st.aborts_unsaid_until = std::max(st.aborts_unsaid_until, until);
  if (st.aborts_unsaid_until != 0 && st.ghosts.empty())
    self->send(st.manager, aborts_done{st.config.pool.index, std::exchange(st.aborts_unsaid_until, 0)});
}

void carry_out(self_ptr self, pool_orders& orders) {
  auto& st = self->state;
  const auto now = self->clock().now();
  for (const auto handle : orders.releases)
    st.pool->release(handle, now);
  std::map<std::uint16_t, abort_order> aborts; // by rank
  for (const auto& end : orders.ends) {
    if (st.waiting->leave(end.handle)) {
      st.pool->left(end.handle, now);
      continue;
    }
    st.pool->end(end.handle, now, end.generated);
    const auto found = st.legs.find(end.handle);
    if (found == st.legs.end())
      continue;
    const auto& leg = found->second;
    if (end.abort && !leg.held) {
      auto& abort = aborts[leg.rank];
      abort.epoch = leg.epoch;
      abort.engine_rids.push_back(engine_rid_of(self, end.handle, leg));
    }
    st.legs.erase(found);
  }
  for (auto& [rank, abort] : aborts) {
    if (st.ranks[rank] != nullptr)
      self->send(st.ranks[rank], std::move(abort));
    else
      abort_ghosts(self, rank, abort.epoch, std::move(abort.engine_rids));
  }
  if (orders.aborts_until != 0)
    acknowledge_aborts(self, orders.aborts_until);
  for (auto& order : orders.places)
    place_or_wait(self, order);
  admit_waiting(self);
  for (const auto& commit : orders.commits) {
    const auto found = st.legs.find(commit.handle);
    if (found == st.legs.end() || !found->second.held)
      continue;
    auto& leg = found->second;
    leg.held = false;
    self->send(st.manager, leg_dispatched{st.config.pool.index, commit.handle, leg.attempt});
    dispatch(self, commit.handle, leg, &commit.bootstrap);
  }
}

/// Forgets legs whose charge is gone with their rank. Returns the rids that the engine may still run.
std::vector<std::string> forget(self_ptr self, const std::vector<core::request_handle>& handles) {
  auto& st = self->state;
  std::vector<std::string> ghosts;
  for (const auto handle : handles) {
    const auto found = st.legs.find(handle);
    if (found == st.legs.end())
      continue;
    if (!found->second.held)
      ghosts.push_back(engine_rid_of(self, handle, found->second));
    st.legs.erase(found);
  }
  return ghosts;
}

/// Legs whose rank is gone: RequestManager places them again, or ends their requests.
void report_lost(self_ptr self, core::rank_id rank, core::rank_epoch epoch, std::vector<core::request_handle> handles,
                 std::string cause) {
  auto& st = self->state;
  for (const auto handle : handles)
    st.pool->left(handle, self->clock().now());
  self->send(st.manager, rank_lost{rank, epoch, std::move(handles), std::move(cause), false});
}

void take_progress(self_ptr self, const core::batch_progress& m) {
  auto& st = self->state;
  if (st.pool->progress(m, self->clock().now())) {
    const auto name = st.config.pool.name + "/" + std::to_string(m.rank.rank);
    spdlog::warn("event=rank_ejected pool={} rank={} epoch={} cause=\"its engine ends most requests with errors\"",
                 st.config.pool.name, m.rank.rank, m.epoch);
    if (st.config.events != nullptr)
      st.config.events->add(self->clock().now(), "rank_ejected", name, "gets no work for a while",
                            "its engine ends most requests with errors");
  }
  for (const auto handle : m.ended)
    st.legs.erase(handle);
  admit_waiting(self);
}

/// Ranks that were left out for errors of their engines get work again: so that the first event is not the last word.
void note_ejections_over(self_ptr self) {
  auto& st = self->state;
  for (const auto& over : st.pool->ejections_over(self->clock().now())) {
    const auto cause = over.renewed ? "a new incarnation took its place" : "its time is over, errors count afresh";
    spdlog::info("event=rank_ejection_over pool={} rank={} epoch={} cause=\"{}\"", st.config.pool.name, over.rank,
                 over.epoch, cause);
    if (st.config.events != nullptr)
      st.config.events->add(self->clock().now(), "rank_ejection_over",
                            st.config.pool.name + "/" + std::to_string(over.rank), "gets work again", cause);
  }
}

/// The DPRank actor was restarted under a living link: what stood in its mailbox is lost. Legs that showed no token may
/// never have been sent: they are taken back and placed again; the others go on.
void take_back_doubtful(self_ptr self, std::uint16_t rank) {
  auto& st = self->state;
  std::vector<core::request_handle> doubtful;
  for (const auto& [h, leg] : st.legs) {
    if (leg.rank == rank && !leg.held && !st.pool->is_prefilled(h))
      doubtful.push_back(h);
  }
  if (doubtful.empty())
    return;
  std::sort(doubtful.begin(), doubtful.end());
  self->send(
      st.manager,
      rank_lost{{st.config.pool.index, rank}, st.epochs[rank], std::move(doubtful), "its actor was restarted", true});
}

void settle(self_ptr self) {
  auto& st = self->state;
  if (!st.settling)
    return;
  st.settling = false;
  auto legs = std::move(st.waiting_legs);
  const auto lost = st.pool->restore(legs, self->clock().now());
  for (auto& leg : legs)
    st.legs[leg.handle] = charged_leg{leg.rank.rank, leg.epoch, leg.attempt, leg.sample, leg.held, leg.request};
  std::map<std::pair<std::uint16_t, core::rank_epoch>, std::vector<core::request_handle>> lost_by_rank;
  for (const auto handle : lost) {
    const auto& leg = st.legs.at(handle);
    lost_by_rank[{leg.rank, leg.epoch}].push_back(handle);
  }
  for (auto& [key, handles] : lost_by_rank) {
    abort_ghosts(self, key.first, key.second, forget(self, handles));
    report_lost(self, {st.config.pool.index, key.first}, key.second, std::move(handles),
                "gone while the controller was restarted");
  }
  for (const auto& progress : std::exchange(st.waiting_progress, {}))
    take_progress(self, progress);
  for (const auto rank : std::exchange(st.doubtful_ranks, {}))
    take_back_doubtful(self, rank);
  std::map<std::pair<std::uint16_t, core::rank_epoch>, std::vector<std::string>> unaborted;
  for (const auto& leg : std::exchange(st.waiting_ended, {}))
    if (leg.rank.rank < st.ranks.size())
      unaborted[{leg.rank.rank, leg.epoch}].push_back(
          wire::sglang::make_engine_rid(*leg.request, leg.sample, leg.handle, leg.attempt, st.config.boot));
  for (auto& [key, rids] : unaborted)
    abort_ghosts(self, key.first, key.second, std::move(rids));
  if (st.waiting_aborts_until != 0)
    acknowledge_aborts(self, std::exchange(st.waiting_aborts_until, 0));
  auto waiting = std::move(st.waiting_orders);
  for (auto& orders : waiting)
    carry_out(self, orders);
}

/// The rank has an actor again: hands over what was kept for it.
void send_kept_ghosts(self_ptr self, std::uint16_t rank) {
  auto& st = self->state;
  const auto kept = st.ghosts.find(rank);
  if (kept == st.ghosts.end())
    return;
  self->send(st.ranks[rank], ghost_requests{st.epochs[rank], std::move(kept->second)});
  st.ghosts.erase(kept);
  acknowledge_aborts(self, 0);
}

void take_up(self_ptr self, const rank_up& m) {
  auto& st = self->state;
  const auto number = m.rank.rank.rank;
  if (m.rank.rank.pool != st.config.pool.index || number >= st.ranks.size())
    return;
  auto handle = caf::actor_cast<dp_rank_actor>(m.handle);
  const bool other_actor = st.orphaned[number] || (st.ranks[number] != nullptr && st.ranks[number] != handle);
  st.orphaned[number] = false;
  const auto old_epoch = st.epochs[number];
  st.ranks[number] = handle;
  st.epochs[number] = m.rank.epoch;
  send_kept_ghosts(self, number);
  auto dropped = st.pool->rank_up(m.rank, self->clock().now());
  if (!dropped.empty()) {
    auto ghosts = forget(self, dropped);
    self->send(handle, ghost_requests{old_epoch, std::move(ghosts)});
    report_lost(self, m.rank.rank, old_epoch, std::move(dropped), "a new incarnation of the rank took its place");
  } else if (other_actor && old_epoch == m.rank.epoch) {
    take_back_doubtful(self, number);
  } else if (other_actor && st.settling) {
    st.doubtful_ranks.push_back(number); // its legs are not restored yet
  }
  if (st.settling && ++st.announced >= st.config.ranks_expected)
    settle(self);
  if (!st.settling)
    admit_waiting(self);
}

/// By what the rank judges a silence, and its drain.
void tell_outstanding(self_ptr self, std::uint16_t rank) {
  auto& st = self->state;
  if (st.ranks[rank] == nullptr)
    return;
  const auto f = st.pool->figures(rank, self->clock().now());
  st.told_idle[rank] = f.requests == 0;
  self->send(st.ranks[rank], outstanding_work{f.requests, f.prefill_tokens, f.prefilled_tokens,
                                              st.pool->state_of(rank) == core::rank_state::draining});
}

} // namespace

dp_controller_actor::behavior_type dp_controller(self_ptr self, dp_controller_config config) {
  auto& st = self->state;
  st.config = std::move(config);
  st.pool.emplace(st.config.pool, nullptr, st.config.recorders);
  st.waiting.emplace(st.config.pool.waiting_requests_max, st.config.pool.waiting_time_max,
                     st.config.pool.waiting_order);
  st.legs.reserve(std::min(st.config.pool.requests_in_flight_max, core::requests_reserved_max));
  st.ranks.resize(st.config.pool.ranks_max);
  st.epochs.resize(st.config.pool.ranks_max);
  st.orphaned.resize(st.config.pool.ranks_max);
  st.told_idle.resize(st.config.pool.ranks_max, false); // a suspect rank may wait to hear it since before a restart
  st.settling = st.config.ranks_expected > 0;
  end_on_exception(self);
  self->delayed_send(self, st.settling ? st.config.settle_max : st.config.tick, tick_atom::value);

  return {
      [=](pool_orders& m) {
        timer t{self, self->state.stats};
        if (self->state.settling)
          self->state.waiting_orders.push_back(std::move(m));
        else
          carry_out(self, m);
      },
      [=](const core::batch_progress& m) {
        timer t{self, self->state.stats};
        if (self->state.settling)
          self->state.waiting_progress.push_back(m);
        else
          take_progress(self, m);
      },
      [=](const load_update& m) {
        timer t{self, self->state.stats};
        for (const auto& report : m.reports)
          self->state.pool->report(report);
        admit_waiting(self);
      },
      [=](const rank_up& m) {
        timer t{self, self->state.stats};
        take_up(self, m);
      },
      [=](const rank_not_up& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.rank.rank >= s.ranks.size())
          return;
        if (m.state == core::rank_state::suspect || m.state == core::rank_state::draining) {
          s.pool->rank_paused(m.rank, m.epoch, m.state);
          if (m.state == core::rank_state::draining)
            tell_outstanding(self, m.rank.rank);
          return;
        }
        // Whatever the epoch: a parked rank has no actor that could send.
        const auto epoch = m.state == core::rank_state::parked ? s.epochs[m.rank.rank] : m.epoch;
        auto handles = s.pool->rank_down(m.rank, epoch, m.state);
        auto ghosts = forget(self, handles);
        if (m.state == core::rank_state::parked || m.state == core::rank_state::removed)
          s.ranks[m.rank.rank] = nullptr;
        if (m.state == core::rank_state::down && s.ranks[m.rank.rank] == nullptr) {
          // The rank was down when this controller was started: only by this word we know its actor, which lives, for
          // the Supervisor's word of its death would have come behind all of its own.
          s.ranks[m.rank.rank] = caf::actor_cast<dp_rank_actor>(self->current_sender());
          send_kept_ghosts(self, m.rank.rank);
        }
        if (m.state == core::rank_state::removed)
          s.ghosts.erase(m.rank.rank); // its process is never heard again
        else
          abort_ghosts(self, m.rank.rank, epoch, std::move(ghosts));
        if (!handles.empty())
          report_lost(self, m.rank, epoch, std::move(handles), m.cause);
      },
      [=](const rank_actor_lost& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.rank.rank >= s.ranks.size())
          return;
        s.orphaned[m.rank.rank] = true;
        s.ranks[m.rank.rank] = nullptr;
        s.pool->rank_paused(m.rank, s.epochs[m.rank.rank], core::rank_state::suspect);
      },
      [=](const dispatch_failed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        const auto found = s.legs.find(m.handle);
        if (found == s.legs.end() || found->second.attempt != m.attempt)
          return;
        s.legs.erase(found);
        s.pool->end(m.handle, self->clock().now());
        core::refusal r;
        r.handle = m.handle;
        r.attempt = m.attempt;
        r.pool = s.config.pool.index;
        r.reason = m.reason;
        r.retry = true;
        r.text = m.text;
        self->send(s.manager, std::move(r));
      },
      [=](restore_ledger& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.legs.empty() && m.ended.empty() && s.waiting_legs.empty())
          return;
        for (auto& leg : m.legs)
          s.waiting_legs.push_back(std::move(leg));
        for (auto& leg : m.ended)
          s.waiting_ended.push_back(std::move(leg));
        s.waiting_aborts_until = m.aborts_until;
        if (!s.settling) {
          s.settling = true; // nothing to wait for
          settle(self);
        }
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (s.settling && s.manager != nullptr) {
          // Orders of the manager that died are void; what it had placed is restored only to be ended below.
          s.waiting_orders.clear();
          s.waiting_aborts_until = 0;
          settle(self);
        }
        s.manager = caf::actor_cast<request_manager_actor>(m.handle);
        for (const auto handle : s.waiting->clear())
          s.pool->left(handle, self->clock().now());
        s.aborts_unsaid_until = 0; // its predecessor's numbers
        // Whatever its predecessor had placed belongs to nobody now: end it, on the engines too.
        pool_orders orders;
        for (const auto& [handle, leg] : s.legs)
          orders.ends.push_back({handle, true, 0});
        // The order of a hash map must not decide the order of aborts.
        std::sort(orders.ends.begin(), orders.ends.end(),
                  [](const core::end_order& a, const core::end_order& b) { return a.handle < b.handle; });
        carry_out(self, orders);
      },
      [=](list_atom) -> pool_view {
        timer t{self, self->state.stats};
        auto& s = self->state;
        pool_view v;
        v.pool = s.config.pool.index;
        v.name = s.config.pool.name;
        v.role = std::string{core::to_string(s.config.pool.role)};
        v.policy = s.pool->options().policy;
        v.waiting = s.waiting->size();
        v.ranks_awaited = s.config.pool.ranks_awaited;
        v.ranks_up = static_cast<std::uint32_t>(s.pool->ranks_up());
        v.dp_size = s.pool->dp_size();
        v.charges = s.pool->charge_count();
        v.counts = s.pool->counts();
        v.ranks = s.pool->rows(self->clock().now());
        return v;
      },
      [=](const placement_query& m) -> placement_list {
        timer t{self, self->state.stats};
        return {self->state.pool->explain(m.rid), {}};
      },
      [=](const policy_change& m) -> policy_change_result {
        timer t{self, self->state.stats};
        auto before = self->state.pool->options().policy;
        const bool done = self->state.pool->set_policy(m.policy, self->clock().now());
        return {done, std::move(before)};
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        settle(self); // the time to wait for announcements is over
        for (auto& order : s.waiting->expired(self->clock().now()))
          place(self, order, false);
        admit_waiting(self);
        note_ejections_over(self);
        for (std::size_t i = 0; i < s.ranks.size(); ++i) {
          if (s.ranks[i] == nullptr)
            continue;
          const auto rank = static_cast<std::uint16_t>(i);
          const bool idle = s.pool->figures(rank, self->clock().now()).requests == 0;
          if (!idle || !s.told_idle[i] || s.pool->state_of(rank) == core::rank_state::draining)
            tell_outstanding(self, rank);
        }
        self->delayed_send(self, s.config.tick, tick_atom::value);
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        return make_status(self, self->state.stats, "dp_controller", self->state.config.pool.name,
                           self->state.settling ? "settling" : "running");
      },
  };
}

} // namespace rankwise
