#include "actors/introspector.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace rankwise {

namespace {

using self_ptr = introspector_actor::stateful_pointer<introspector_state>;
using timer = handler_timer<introspector_actor::stateful_base<introspector_state>>;

/// One round of questions. Lives until the last answer, or its absence, is in.
struct round {
  node_snapshot snapshot;
  std::size_t open = 0;
  std::function<void(node_snapshot&)> done;
};
using round_ptr = std::shared_ptr<round>;

void answered(self_ptr self, const round_ptr& r) {
  if (--r->open != 0)
    return;
  self->state.last = r->snapshot;
  self->state.taken_at = self->clock().now();
  r->done(r->snapshot);
}

void ask_children(self_ptr self, const round_ptr& r, child_list& list) {
  const auto answer_max = self->state.config.answer_max;
  r->snapshot.degraded = list.degraded;
  r->snapshot.degraded_reason = list.degraded_reason;
  const auto base = r->snapshot.actors.size();
  for (std::size_t i = 0; i < list.children.size(); ++i)
    r->snapshot.actors.push_back(list.children[i].status);
  for (std::size_t i = 0; i < list.children.size(); ++i) {
    auto& child = list.children[i];
    const auto full_name = child.status.role + (child.status.name.empty() ? "" : " " + child.status.name);
    if (child.handle == nullptr) {
      r->snapshot.silent.push_back(full_name);
      continue;
    }
    const auto row = base + i;
    ++r->open;
    self->request(caf::actor_cast<caf::actor>(child.handle), answer_max, status_atom::value)
        .then(
            [=](const actor_status& s) {
              auto& mine = r->snapshot.actors[row];
              mine.state = s.state;
              mine.detail = s.detail;
              mine.mailbox_depth = s.mailbox_depth;
              mine.handled = s.handled;
              mine.longest_handler_ns = s.longest_handler_ns;
              mine.slow_handlers = s.slow_handlers;
              mine.answered = true;
              answered(self, r);
            },
            [=](const caf::error&) {
              r->snapshot.actors[row].state = "not answering";
              r->snapshot.silent.push_back(full_name);
              answered(self, r);
            });
    if (child.status.role == "dp_controller") {
      ++r->open;
      self->request(caf::actor_cast<dp_controller_actor>(child.handle), answer_max, list_atom::value)
          .then(
              [=](pool_view& v) {
                r->snapshot.pools.push_back(std::move(v));
                std::sort(r->snapshot.pools.begin(), r->snapshot.pools.end(),
                          [](const pool_view& a, const pool_view& b) { return a.pool < b.pool; });
                answered(self, r);
              },
              [=](const caf::error&) { answered(self, r); });
    }
    if (child.status.role == "request_manager") {
      ++r->open;
      self->request(caf::actor_cast<request_manager_actor>(child.handle), answer_max, counts_atom::value)
          .then(
              [=](const core::request_counts& c) {
                r->snapshot.requests += c;
                r->snapshot.requests_known = true;
                answered(self, r);
              },
              [=](const caf::error&) { answered(self, r); });
    }
  }
}

/// The answers of all controllers that answer, put together, and the pools of those that do not.
void ask_why(self_ptr self, const child_list& list, const placement_query& query,
             caf::typed_response_promise<placement_list> promise) {
  struct collection {
    placement_list found;
    std::size_t open = 1;
    caf::typed_response_promise<placement_list> promise;
  };
  auto collected = std::make_shared<collection>();
  collected->promise = std::move(promise);
  const auto one_less = [collected] {
    if (--collected->open != 0)
      return;
    std::sort(collected->found.silent.begin(), collected->found.silent.end());
    collected->promise.deliver(std::move(collected->found));
  };
  for (const auto& child : list.children) {
    if (child.status.role != "dp_controller")
      continue;
    const auto is_silent = [collected, pool = child.status.name] { collected->found.silent.push_back(pool); };
    if (child.handle == nullptr) {
      is_silent();
      continue;
    }
    ++collected->open;
    self->request(caf::actor_cast<dp_controller_actor>(child.handle), self->state.config.answer_max, query)
        .then(
            [=](placement_list& part) {
              auto& records = collected->found.records;
              records.insert(records.end(), part.records.begin(), part.records.end());
              one_less();
            },
            [=](const caf::error&) {
              is_silent();
              one_less();
            });
  }
  one_less();
}

/// The open requests of all RequestManagers that answer, the oldest first; an error when none does.
void list_requests(self_ptr self, std::uint64_t limit, caf::typed_response_promise<request_list> promise) {
  struct collection {
    request_list found;
    std::size_t open = 1;
    bool answered = false;
    caf::typed_response_promise<request_list> promise;
  };
  auto collected = std::make_shared<collection>();
  collected->promise = std::move(promise);
  const auto one_less = [collected, limit] {
    if (--collected->open != 0)
      return;
    if (!collected->answered) {
      collected->promise.deliver(make_error(node_error::peer_missing, "request_manager"));
      return;
    }
    auto& rows = collected->found.rows;
    std::stable_sort(rows.begin(), rows.end(),
                     [](const core::request_row& a, const core::request_row& b) { return a.age_s > b.age_s; });
    if (rows.size() > limit)
      rows.resize(limit);
    collected->promise.deliver(std::move(collected->found));
  };
  for (const auto& manager : self->state.config.directory->managers()) {
    if (manager.handle == nullptr)
      continue;
    ++collected->open;
    self->request(manager.handle, self->state.config.answer_max, list_atom::value, limit)
        .then(
            [=](request_list& part) {
              auto& all = collected->found;
              collected->answered = true;
              all.open_streams += part.open_streams;
              all.rows.insert(all.rows.end(), part.rows.begin(), part.rows.end());
              one_less();
            },
            [=](const caf::error&) { one_less(); });
  }
  one_less();
}

/// Asks everybody; `done` gets what was answered. False: there is nobody to ask.
bool take_snapshot(self_ptr self, std::function<void(node_snapshot&)> done) {
  auto supervisor = self->state.config.directory->supervisor();
  if (supervisor == nullptr)
    return false;
  auto r = std::make_shared<round>();
  r->done = std::move(done);
  r->open = 2;
  self->request(supervisor, self->state.config.answer_max, status_atom::value)
      .then(
          [=](const actor_status& status) {
            r->snapshot.actors.insert(r->snapshot.actors.begin(), status);
            self->request(supervisor, self->state.config.answer_max, list_atom::value)
                .then(
                    [=](child_list& list) {
                      ask_children(self, r, list);
                      answered(self, r);
                    },
                    [=](const caf::error&) { answered(self, r); });
            answered(self, r);
          },
          [=](const caf::error&) {
            r->snapshot.silent.push_back("supervisor");
            r->open = 1;
            answered(self, r);
          });
  return true;
}

/// The next second of the load history; of a controller that does not answer, no rank is seen.
void sample_loads(self_ptr self) {
  take_snapshot(self, [self](node_snapshot& snapshot) {
    std::vector<core::rank_row> rows;
    for (const auto& pool : snapshot.pools)
      rows.insert(rows.end(), pool.ranks.begin(), pool.ranks.end());
    self->state.config.loads->add(rows);
  });
}

} // namespace

introspector_actor::behavior_type introspector(self_ptr self, introspector_config config) {
  self->state.config = std::move(config);
  end_on_exception(self);
  if (self->state.config.loads != nullptr)
    self->delayed_send(self, core::load_history::step, tick_atom::value);

  return {
      [=](snapshot_atom) -> caf::result<node_snapshot> {
        timer t{self, self->state.stats};
        auto& s = self->state;
        if (s.last && self->clock().now() - s.taken_at < s.config.reuse_for)
          return *s.last;
        auto promise = self->make_response_promise<node_snapshot>();
        const auto deliver = [promise](node_snapshot& snapshot) mutable { promise.deliver(std::move(snapshot)); };
        if (!take_snapshot(self, deliver))
          promise.deliver(make_error(node_error::peer_missing, "supervisor"));
        return promise;
      },
      [=](list_atom, std::uint64_t limit) -> caf::result<request_list> {
        timer t{self, self->state.stats};
        auto promise = self->make_response_promise<request_list>();
        list_requests(self, limit, promise);
        return promise;
      },
      [=](const placement_query& m) -> caf::result<placement_list> {
        timer t{self, self->state.stats};
        auto promise = self->make_response_promise<placement_list>();
        auto supervisor = self->state.config.directory->supervisor();
        if (supervisor == nullptr) {
          promise.deliver(make_error(node_error::peer_missing, "supervisor"));
          return promise;
        }
        self->request(supervisor, self->state.config.answer_max, list_atom::value)
            .then([=](const child_list& list) { ask_why(self, list, m, promise); },
                  [promise](const caf::error& e) mutable { promise.deliver(e); });
        return promise;
      },
      [=](tick_atom) {
        timer t{self, self->state.stats};
        sample_loads(self);
        self->delayed_send(self, core::load_history::step, tick_atom::value);
      },
      [=](crash_atom) { throw std::runtime_error("injected crash"); },
      [=](status_atom) -> actor_status {
        timer t{self, self->state.stats};
        return make_status(self, self->state.stats, "introspector", {}, "running");
      },
  };
}

} // namespace rankwise
