#include "actors/dp_rank.hpp"

#include "messages/type_ids.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <caf/all.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

namespace rankwise {

namespace {

using self_ptr = dp_rank_actor::stateful_pointer<dp_rank_state>;
using timer = handler_timer<dp_rank_actor::stateful_base<dp_rank_state>>;

std::string name_of(const dp_rank_config& config) {
  return config.pool_name + "/" + std::to_string(config.id.rank);
}

void announce_to_controller(self_ptr self) {
  auto& st = self->state;
  st.announced = true;
  st.announcement.state = st.machine->state();
  if (st.controller != nullptr)
    self->send(st.controller, rank_up{st.announcement, caf::actor_cast<caf::strong_actor_ptr>(self)});
}

void show_way(self_ptr self, const request_manager_actor& manager) {
  const auto& st = self->state;
  self->send(manager, rank_route{st.config.id, st.announcement.epoch, caf::actor_cast<caf::strong_actor_ptr>(self)});
}

/// Owners hear of it before the controller: a placement on this rank finds the way to it known.
void announce(self_ptr self) {
  for (const auto& [owner, manager] : self->state.owners)
    show_way(self, manager);
  announce_to_controller(self);
}

/// The controller hears of it before the owners: what they order next comes behind it. Suspect and draining ranks keep
/// what they run; of any other what they ran up to `epoch` is lost to its owners.
void withdraw(self_ptr self, core::rank_epoch epoch, core::rank_state state, const std::string& cause) {
  auto& st = self->state;
  const bool keeps = state == core::rank_state::suspect || state == core::rank_state::draining;
  const bool gone = state == core::rank_state::down || state == core::rank_state::removed;
  st.announced = st.announced && !gone;
  if (st.controller != nullptr)
    self->send(st.controller, rank_not_up{st.config.id, epoch, state, cause});
  if (keeps)
    return;
  for (const auto& [owner, manager] : st.owners)
    self->send(manager, rank_lost{st.config.id, epoch, cause});
}

void append(std::vector<std::string>& to, std::vector<std::string> rids) {
  to.insert(to.end(), std::make_move_iterator(rids.begin()), std::make_move_iterator(rids.end()));
}

/// Tells the engine to stop these; keeps them for later when its link is not there.
void abort_on_engine(self_ptr self, std::vector<std::string> rids) {
  if (rids.empty())
    return;
  auto& st = self->state;
  auto& books = *st.config.books;
  const auto epoch = st.machine->epoch();
  const auto now = self->clock().now();
  if (st.config.link->send(st.config.id, epoch, {core::frame_kind::abort, wire::sglang::encode_abort(rids), {}}) !=
      core::send_result::queued) {
    append(books.ghosts, std::move(rids));
    return;
  }
  auto& sent = books.aborts_sent;
  for (auto& rid : rids)
    sent.push_back({now, std::move(rid)});
  while (!sent.empty() && (sent.size() > rank_books::sent_max || now - sent.front().at > rank_books::unsure_for))
    sent.pop_front();
}

/// Has everything aborted that the process behind the link may run for nobody. A new process ignores unknown rids.
void abort_ghosts(self_ptr self) {
  abort_on_engine(self, std::exchange(self->state.config.books->ghosts, {}));
}

/// The link is lost: what was sent on it lately may not have arrived, and what its engine still runs belongs to nobody.
void link_lost(self_ptr self) {
  auto& books = *self->state.config.books;
  for (auto& [at, rid] : std::exchange(books.aborts_sent, {}))
    if (self->clock().now() - at <= rank_books::unsure_for)
      books.ghosts.push_back(std::move(rid));
  append(books.ghosts, books.legs.take_all());
}

void log_transition(self_ptr self, const core::rank_transition& t) {
  auto& st = self->state;
  st.last_cause = t.cause;
  if (st.config.events != nullptr)
    st.config.events->add(self->clock().now(), "rank_state", name_of(st.config),
                          (t.from == t.to ? "" : std::string{core::to_string(t.from)} + " -> ") +
                              std::string{core::to_string(t.to)} + ", epoch " + std::to_string(t.epoch),
                          t.cause);
  spdlog::info("event=rank_state pool={} rank={} epoch={} from={} to={} cause={:?}", self->state.config.pool_name,
               self->state.config.id.rank, t.epoch, core::to_string(t.from), core::to_string(t.to), t.cause);
}

/// Takes over what a registration says. False: its layout is of no use to us, and says so.
bool take_registration(self_ptr self, link_event& e) {
  auto& st = self->state;
  wire::sglang::registration r;
  r.positional_layouts = std::move(e.layouts);
  auto layout = wire::sglang::request_layout::from_registration(r);
  if (!layout) {
    st.last_cause = "its layout lacks " + layout.error().field;
    spdlog::error("event=rank_refused pool={} rank={} epoch={} version={} lacks={}", st.config.pool_name,
                  st.config.id.rank, e.epoch, e.engine_version, layout.error().field);
    if (st.config.events != nullptr)
      st.config.events->add(self->clock().now(), "rank_refused", name_of(st.config), "refused", st.last_cause);
    st.config.link->close(st.config.id, e.epoch);
    return false;
  }
  st.layout = std::move(*layout);
  st.announcement = {st.config.id,         e.epoch,       e.kv_capacity,      e.max_running, e.chunk_tokens,
                     e.data_parallel_size, st.ever_ready, st.machine->state()};
  st.ever_ready = true;
  return true;
}

void on_link(self_ptr self, link_event& e) {
  auto& st = self->state;
  auto& machine = *st.machine;
  const auto now = self->clock().now();
  const auto old_epoch = machine.epoch();
  switch (e.kind) {
  case link_event_kind::hello: {
    if (const auto t = machine.on_hello(e.epoch, e.cause)) {
      log_transition(self, *t);
      if (e.epoch > 1) // also of incarnations that an earlier actor of this rank knew
        withdraw(self, e.epoch - 1, core::rank_state::down, "a new incarnation said HELLO");
      st.layout.reset();
      if (const auto limit = st.config.timing.registration_max; limit > core::duration{}) {
        st.register_until = now + limit;
        self->delayed_send(self, limit, tick_atom::value);
      }
      // A new process runs nothing of the old one.
      st.config.books->legs.clear();
      st.config.books->ghosts.clear();
      st.config.books->aborts_sent.clear();
    }
    break;
  }
  case link_event_kind::registered: {
    if (e.epoch < machine.epoch())
      break;
    if (!take_registration(self, e))
      break;
    if (const auto t = machine.on_registered(e.epoch, now)) {
      log_transition(self, *t);
      if (old_epoch != 0 && old_epoch != e.epoch)
        withdraw(self, old_epoch, core::rank_state::down, "a new incarnation registered");
      st.given_up = false;
      if (auto& sent_on = st.config.books->link_epoch; std::exchange(sent_on, e.epoch) != e.epoch)
        link_lost(self); // it came back while there was no actor to hear of it
      abort_ghosts(self);
      announce(self);
    }
    break;
  }
  case link_event_kind::restored:
    if (const auto t = machine.on_restored(e.epoch)) {
      log_transition(self, *t);
      take_registration(self, e);
    }
    break;
  case link_event_kind::refused:
    st.last_cause = e.cause;
    if (st.config.events != nullptr)
      st.config.events->add(now, "rank_refused", name_of(st.config), "refused", e.cause);
    spdlog::error("event=rank_refused pool={} rank={} epoch={} cause={:?}", st.config.pool_name, st.config.id.rank,
                  e.epoch, e.cause);
    break;
  case link_event_kind::lost:
    if (const auto t = machine.on_lost(e.epoch, e.cause)) {
      log_transition(self, *t);
      link_lost(self);
      withdraw(self, e.epoch, core::rank_state::down, e.cause);
    }
    break;
  case link_event_kind::reconnected:
    if (!st.layout)
      break;
    if (const auto t = machine.on_reconnected(e.epoch, now)) {
      log_transition(self, *t);
      link_lost(self);
      withdraw(self, old_epoch, core::rank_state::down, "its link was re-established");
      st.config.books->link_epoch = e.epoch;
      st.announcement.epoch = e.epoch;
      st.announcement.renewed = true;
      st.given_up = false;
      abort_ghosts(self);
      announce(self);
    }
    break;
  }
}

void on_tick(self_ptr self) {
  auto& st = self->state;
  const auto now = self->clock().now();
  if (const auto t = st.machine->on_tick(
          now, {st.outstanding.requests, st.outstanding.prefill_tokens, st.outstanding.prefilled_tokens},
          st.config.link->last_output(st.config.id))) {
    log_transition(self, *t);
    if (t->to == core::rank_state::suspect)
      withdraw(self, t->epoch, core::rank_state::suspect, t->cause);
    else
      announce_to_controller(self);
  }
  if (st.machine->hangs() && !std::exchange(st.given_up, true))
    st.config.link->give_up(st.config.id, st.machine->epoch(), "it hangs: longer silent than its work explains");
}

/// An engine that said HELLO and nothing more: its rank must not be joining for ever. A later HELLO starts anew.
void on_registration_time(self_ptr self) {
  auto& st = self->state;
  auto& machine = *st.machine;
  if (!st.register_until || machine.state() != core::rank_state::joining || self->clock().now() < *st.register_until)
    return;
  st.register_until.reset();
  const auto epoch = machine.epoch();
  if (const auto t = machine.on_lost(
          epoch, fmt::format("did not register within {} s", core::to_seconds(st.config.timing.registration_max)))) {
    log_transition(self, *t);
    st.config.link->close(st.config.id, epoch);
  }
}

/// The drain of a rank whose controller gives it no more work.
void on_drain_progress(self_ptr self) {
  auto& st = self->state;
  if (!st.outstanding.draining)
    return;
  if (const auto t = st.machine->on_drain_progress(self->clock().now(), st.outstanding.requests)) {
    log_transition(self, *t);
    withdraw(self, t->epoch, t->to, t->cause); // what is left on it moves or ends
    abort_on_engine(self, st.config.books->legs.take_all());
  }
}

rank_command_result on_command(self_ptr self, const rank_command& m) {
  auto& st = self->state;
  auto& machine = *st.machine;
  const auto now = self->clock().now();
  const auto answer = [&](bool done, std::string text) {
    return rank_command_result{done, true, machine.state(), std::move(text)};
  };
  switch (m.wish) {
  case rank_wish::drain:
    if (const auto t = machine.on_drain(now + m.deadline)) {
      log_transition(self, *t);
      withdraw(self, t->epoch, t->to, t->cause);
    }
    return answer(true, machine.is_linked() ? "is " + std::string{core::to_string(machine.state())}
                                            : "is " + std::string{core::to_string(machine.state())} +
                                                  "; gets no work when it comes back");
  case rank_wish::undrain:
    if (!machine.drain_wanted())
      return answer(false, "is not being drained, it is " + std::string{core::to_string(machine.state())});
    if (const auto t = machine.on_undrain(now)) {
      log_transition(self, *t);
      announce(self);
    }
    return answer(true, "is " + std::string{core::to_string(machine.state())});
  case rank_wish::remove:
    break;
  }
  const bool empty = machine.state() == core::rank_state::drained || !machine.is_linked();
  if (!empty && !m.force)
    return answer(false, "is " + std::string{core::to_string(machine.state())} +
                             ": drain it first, or force its removal and lose what it runs");
  log_transition(self, {machine.state(), core::rank_state::removed, machine.epoch(), "an operator removed it"});
  withdraw(self, machine.epoch(), core::rank_state::removed, "an operator removed it");
  st.config.link->close(st.config.id, machine.epoch());
  self->quit(caf::exit_reason::normal);
  return {true, true, core::rank_state::removed, "is removed"};
}

void fail_dispatch(self_ptr self, core::leg_id leg, core::failure reason, const std::string& what) {
  auto& st = self->state;
  if (const auto owner = st.owners.find(core::owner_of(leg.handle)); owner != st.owners.end())
    self->send(owner->second,
               dispatch_failed{st.config.id, leg, reason, "rank " + std::to_string(st.config.id.rank) + " " + what});
}

void dispatch(self_ptr self, const dispatch_order& m) {
  auto& st = self->state;
  const auto state = st.machine->state();
  const core::leg_id leg{m.handle, m.attempt};
  const bool takes_work = state == core::rank_state::ready || state == core::rank_state::suspect ||
                          state == core::rank_state::draining; // an order may have been on its way
  if (!st.layout || !st.announced || !takes_work || m.epoch != st.announcement.epoch)
    return fail_dispatch(self, leg, core::failure::no_rank_available,
                         fmt::format("is {}, epoch {}; the order was for epoch {}", core::to_string(state),
                                     st.announcement.epoch, m.epoch));
  std::optional<core::bootstrap_info> bootstrap;
  if (m.has_bootstrap)
    bootstrap = m.bootstrap;
  auto rid = wire::sglang::make_engine_rid(*m.request, m.sample, m.handle, m.attempt, st.config.boot);
  auto frame = st.layout->encode_add(*m.request, rid, bootstrap);
  auto& legs = st.config.books->legs;
  legs.add(leg, std::move(rid));
  const auto result =
      st.config.link->send(st.config.id, m.epoch, {core::frame_kind::add, std::move(frame), m.request->received_at});
  if (result == core::send_result::queued)
    return;
  legs.forget(leg);
  if (result == core::send_result::unknown_link)
    fail_dispatch(self, leg, core::failure::no_rank_available, fmt::format("has lost its link of epoch {}", m.epoch));
  else
    fail_dispatch(self, leg, core::failure::rank_queue_full, std::string{core::to_string(result)});
}

/// What was in the mailbox of an earlier actor of this rank is lost: dispatches are told as failed, aborts are made up
/// for.
void compare_legs(self_ptr self, const legs_on_rank& m) {
  auto& st = self->state;
  if (!st.announced || m.epoch != st.announcement.epoch)
    return;
  auto difference = st.config.books->legs.compare(m.owner, m.legs);
  abort_on_engine(self, std::move(difference.unwanted));
  for (const auto& leg : difference.never_sent)
    fail_dispatch(self, leg, core::failure::no_rank_available, "lost its actor before it sent the request");
}

/// A RequestManager was (re)started. What its predecessor had here belongs to nobody now.
void take_owner(self_ptr self, const peer_changed& m) {
  auto& st = self->state;
  auto& known = st.config.books->owners;
  if (m.index >= known.size())
    known.resize(m.index + std::size_t{1});
  const auto before = std::exchange(known[m.index], m.owner);
  st.owners.erase(before);
  const auto& manager = st.owners[m.owner] = caf::actor_cast<request_manager_actor>(m.handle);
  if (before != 0 && before != m.owner)
    abort_on_engine(self, st.config.books->legs.take_all_of(before));
  if (st.announced)
    show_way(self, manager);
}

void take_controller(self_ptr self, const peer_changed& m) {
  auto& st = self->state;
  st.controller = caf::actor_cast<dp_controller_actor>(m.handle);
  if (st.layout && st.machine->is_linked())
    announce_to_controller(self);
  else if (st.machine->state() == core::rank_state::down)
    self->send(st.controller, rank_not_up{st.config.id, st.machine->epoch(), core::rank_state::down, st.last_cause});
}

} // namespace

dp_rank_actor::behavior_type dp_rank(self_ptr self, dp_rank_config config) {
  auto& st = self->state;
  st.config = std::move(config);
  st.machine.emplace(st.config.id, st.config.timing);
  end_on_exception(self);

  return {
      [=](link_event& e) {
        timer t{self, self->state.stats};
        on_link(self, e);
      },
      [=](const dispatch_order& m) {
        timer t{self, self->state.stats};
        dispatch(self, m);
      },
      [=](const close_order& m) {
        timer t{self, self->state.stats};
        auto& legs = self->state.config.books->legs;
        std::vector<std::string> rids;
        for (const auto& leg : m.aborts)
          if (auto rid = legs.take(leg))
            rids.push_back(std::move(*rid));
        for (const auto& leg : m.ended)
          legs.forget(leg);
        abort_on_engine(self, std::move(rids));
      },
      [=](const legs_on_rank& m) {
        timer t{self, self->state.stats};
        compare_legs(self, m);
      },
      [=](const rank_command& m) -> rank_command_result {
        timer t{self, self->state.stats};
        return on_command(self, m);
      },
      [=](const outstanding_work& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.outstanding = m;
        on_tick(self);
        on_drain_progress(self);
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        if (m.role == "request_manager")
          take_owner(self, m);
        else
          take_controller(self, m);
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        on_registration_time(self);
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        auto& s = self->state;
        auto status =
            make_status(self, s.stats, "dp_rank", name_of(s.config), std::string{core::to_string(s.machine->state())});
        const auto& silence = s.machine->silence();
        status.detail = fmt::format("silence explained: {:.1f} s, and {:.2f} s for each 1,000 tokens to prefill",
                                    core::to_seconds(silence.explained(0)), 1000 / silence.prefill_tokens_per_s());
        return status;
      },
  };
}

} // namespace rankwise
