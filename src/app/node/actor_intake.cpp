#include "app/node/actor_intake.hpp"

#include "messages/type_ids.hpp"

#include <caf/all.hpp>

#include <utility>

namespace rankwise::app {

namespace {

std::size_t hash_of(const std::string& rid) noexcept {
  return std::hash<std::string>{}(rid);
}

} // namespace

core::owner_id actor_intake::submit(core::stream_id stream, core::request_ptr request) noexcept {
  const auto manager = directory_->manager_for(hash_of(request->rid));
  if (manager.handle == nullptr || manager.backlog->submissions.fetch_add(1) >= submissions_max_) {
    if (manager.backlog != nullptr)
      manager.backlog->submissions.fetch_sub(1);
    core::stream_batch batch;
    core::stream_event event;
    event.stream = stream;
    event.outcome_index = 0;
    batch.events.push_back(event);
    batch.outcomes.push_back({core::outcome_kind::refused, core::failure::request_manager_overloaded,
                              "backlog_submissions_max is " + std::to_string(submissions_max_), 0});
    sink_->deliver(std::move(batch));
    return 0;
  }
  caf::anon_send(manager.handle, submit_request{stream, std::move(request)});
  return manager.owner;
}

void actor_intake::cancel(core::stream_id stream, core::owner_id owner, core::failure why) noexcept {
  if (const auto manager = directory_->manager_of(owner); manager.handle != nullptr)
    caf::anon_send(manager.handle, cancel_request{stream, why});
}

void actor_intake::abort(std::string rid) noexcept {
  if (const auto manager = directory_->manager_for(hash_of(rid)); manager.handle != nullptr)
    caf::anon_send(manager.handle, abort_request{std::move(rid)});
}

} // namespace rankwise::app
