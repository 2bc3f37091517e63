#include "actors/dp_rank.hpp"

#include "messages/type_ids.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <caf/all.hpp>
#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

namespace rankwise {

namespace {

using self_ptr = dp_rank_actor::stateful_pointer<dp_rank_state>;
using timer = handler_timer<dp_rank_actor::stateful_base<dp_rank_state>>;

void announce(self_ptr self) {
  auto& st = self->state;
  if (st.controller == nullptr)
    return;
  st.announced = true;
  self->send(st.controller, rank_up{st.announcement, caf::actor_cast<caf::strong_actor_ptr>(self)});
}

void withdraw(self_ptr self, core::rank_epoch epoch, core::rank_state state, const std::string& cause) {
  auto& st = self->state;
  if (st.controller == nullptr)
    return;
  if (state == core::rank_state::down && st.announced)
    st.waiting_for_ghosts = true;
  st.announced = st.announced && state != core::rank_state::down;
  self->send(st.controller, rank_not_up{st.config.id, epoch, state, cause});
}

/// Has everything aborted that the process behind the link may run for nobody. A new process ignores unknown rids.
void abort_ghosts(self_ptr self) {
  auto& st = self->state;
  if (auto rids = std::exchange(st.ghosts, {}); !rids.empty())
    st.config.link->send(st.config.id, st.machine->epoch(),
                         {core::frame_kind::abort, wire::sglang::encode_abort(rids), {}});
}

void log_transition(self_ptr self, const core::rank_transition& t) {
  self->state.last_cause = t.cause;
  spdlog::info("event=rank_state pool={} rank={} epoch={} from={} to={} cause=\"{}\"", self->state.config.pool_name,
               self->state.config.id.rank, t.epoch, core::to_string(t.from), core::to_string(t.to), t.cause);
}

void on_link(self_ptr self, link_event& e) {
  auto& st = self->state;
  auto& machine = *st.machine;
  const auto now = self->clock().now();
  const auto old_epoch = machine.epoch();
  const bool was_announced = st.announced;
  switch (e.kind) {
  case link_event_kind::hello: {
    if (const auto t = machine.on_hello(e.epoch, e.cause)) {
      log_transition(self, *t);
      if (was_announced)
        withdraw(self, old_epoch, core::rank_state::down, "a new incarnation said HELLO");
      st.layout.reset();
    }
    break;
  }
  case link_event_kind::registered: {
    if (e.epoch < machine.epoch())
      break;
    wire::sglang::registration r;
    r.positional_layouts = std::move(e.layouts);
    auto layout = wire::sglang::request_layout::from_registration(r);
    if (!layout) {
      st.last_cause = "its layout lacks " + layout.error().field;
      spdlog::error("event=rank_refused pool={} rank={} epoch={} version={} lacks={}", st.config.pool_name,
                    st.config.id.rank, e.epoch, e.engine_version, layout.error().field);
      st.config.link->close(st.config.id, e.epoch);
      break;
    }
    st.layout = std::move(*layout);
    if (const auto t = machine.on_registered(e.epoch, now)) {
      log_transition(self, *t);
      if (was_announced && old_epoch != e.epoch)
        withdraw(self, old_epoch, core::rank_state::down, "a new incarnation registered");
      st.announcement = {st.config.id,         e.epoch,      e.kv_capacity, e.max_running, e.chunk_tokens,
                         e.data_parallel_size, st.ever_ready};
      st.ever_ready = true;
      st.waiting_for_ghosts = false; // a new process runs nothing of the old one
      st.ghosts.clear();
      announce(self);
    }
    break;
  }
  case link_event_kind::refused:
    st.last_cause = e.cause;
    spdlog::error("event=rank_refused pool={} rank={} epoch={} cause=\"{}\"", st.config.pool_name, st.config.id.rank,
                  e.epoch, e.cause);
    break;
  case link_event_kind::lost:
    if (const auto t = machine.on_lost(e.epoch, e.cause)) {
      log_transition(self, *t);
      if (was_announced)
        withdraw(self, e.epoch, core::rank_state::down, e.cause);
    }
    break;
  case link_event_kind::reconnected:
    if (!st.layout)
      break;
    if (const auto t = machine.on_reconnected(e.epoch, now)) {
      log_transition(self, *t);
      if (was_announced)
        withdraw(self, old_epoch, core::rank_state::down, "its link was re-established");
      st.announcement.epoch = e.epoch;
      st.announcement.renewed = true;
      abort_ghosts(self);
      if (st.waiting_for_ghosts)
        self->delayed_send(self, st.config.ghosts_wait_max, tick_atom::value);
      else
        announce(self);
    }
    break;
  }
}

void on_tick(self_ptr self) {
  auto& st = self->state;
  const auto now = self->clock().now();
  if (const auto t = st.machine->on_tick(now, st.outstanding.requests, st.outstanding.prefill_tokens,
                                         st.config.link->last_output(st.config.id))) {
    log_transition(self, *t);
    if (t->to == core::rank_state::suspect)
      withdraw(self, t->epoch, core::rank_state::suspect, t->cause);
    else
      announce(self);
  }
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
        auto& s = self->state;
        const auto fail = [&](std::string reason) {
          self->send(s.controller, dispatch_failed{m.handle, m.attempt, std::move(reason)});
        };
        if (!s.layout || m.epoch != s.announcement.epoch || !s.announced)
          return fail("rank " + std::to_string(s.config.id.rank) + " is " +
                      std::string{core::to_string(s.machine->state())});
        const auto rid = wire::sglang::make_engine_rid(*m.request, m.sample, m.handle, m.attempt);
        std::optional<core::bootstrap_info> bootstrap;
        if (m.has_bootstrap)
          bootstrap = m.bootstrap;
        const auto result = s.config.link->send(
            s.config.id, m.epoch,
            {core::frame_kind::add, s.layout->encode_add(*m.request, rid, bootstrap), m.request->received_at});
        if (result != core::send_result::queued)
          return fail(std::string{core::to_string(result)});
      },
      [=](const abort_order& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (!m.engine_rids.empty())
          s.config.link->send(s.config.id, m.epoch,
                              {core::frame_kind::abort, wire::sglang::encode_abort(m.engine_rids), {}});
      },
      [=](const ghost_requests& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.ghosts.insert(s.ghosts.end(), m.engine_rids.begin(), m.engine_rids.end());
        if (s.machine->state() != core::rank_state::down)
          abort_ghosts(self);
        if (!s.waiting_for_ghosts)
          return;
        s.waiting_for_ghosts = false;
        if (s.machine->state() == core::rank_state::ready && !s.announced)
          announce(self);
      },
      [=](const outstanding_work& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.outstanding = m;
        on_tick(self);
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        s.controller = caf::actor_cast<dp_controller_actor>(m.handle);
        s.waiting_for_ghosts = false;
        const auto state = s.machine->state();
        s.announced = false;
        if (s.layout && (state == core::rank_state::ready || state == core::rank_state::suspect))
          announce(self);
        if (state == core::rank_state::suspect)
          withdraw(self, s.announcement.epoch, state, s.last_cause);
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        // The controller never said what the rank still runs (it may be restarting): do not wait for ever.
        if (s.waiting_for_ghosts && s.machine->state() == core::rank_state::ready && !s.announced) {
          s.waiting_for_ghosts = false;
          announce(self);
        }
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        auto& s = self->state;
        return make_status(self, s.stats, "dp_rank", s.config.pool_name + "/" + std::to_string(s.config.id.rank),
                           std::string{core::to_string(s.machine->state())});
      },
  };
}

} // namespace rankwise
