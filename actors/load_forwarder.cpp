#include "actors/load_forwarder.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>

#include <stdexcept>

namespace rankwise {

namespace {

using self_ptr = load_forwarder_actor::stateful_pointer<load_forwarder_state>;
using timer = handler_timer<load_forwarder_actor::stateful_base<load_forwarder_state>>;

void forward(self_ptr self) {
  auto& st = self->state;
  if (!st.config.enabled)
    return;
  st.config.board->drain([&](std::size_t, const core::load_report& report) {
    if (report.rank.pool < st.outgoing.size())
      st.outgoing[report.rank.pool].push_back(report);
  });
  for (std::size_t pool = 0; pool < st.outgoing.size(); ++pool) {
    auto& reports = st.outgoing[pool];
    if (!reports.empty() && st.controllers[pool] != nullptr)
      self->send(st.controllers[pool], load_update{reports});
    reports.clear();
  }
}

} // namespace

load_forwarder_actor::behavior_type load_forwarder(self_ptr self, load_forwarder_config config) {
  auto& st = self->state;
  st.config = std::move(config);
  st.controllers.resize(st.config.pool_count);
  st.outgoing.resize(st.config.pool_count);
  end_on_exception(self);
  self->delayed_send(self, st.config.slow_tick, tick_atom::value);

  return {
      [=](wake_atom) {
        timer t{self, self->state.stats};
        forward(self);
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        forward(self);
        self->delayed_send(self, self->state.config.slow_tick, tick_atom::value);
      },
      [=](const peer_changed& m) {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (m.pool >= s.controllers.size())
          return;
        s.controllers[m.pool] = caf::actor_cast<dp_controller_actor>(m.handle);
        // Neither the controller nor, after a restart of our own, we know what was drained before.
        s.config.board->mark_all_dirty();
        forward(self);
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        return make_status(self, self->state.stats, "load_forwarder", {},
                           self->state.config.enabled ? "running" : "disabled");
      },
  };
}

} // namespace rankwise
