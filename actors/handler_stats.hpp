#pragma once

#include "core/base/time.hpp"
#include "messages/common.hpp"
#include "messages/errors.hpp"

#include <caf/exit_reason.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

namespace rankwise {

/// What every actor counts about itself.
struct handler_stats {
  std::uint64_t handled = 0;
  std::uint64_t longest_ns = 0;
  std::uint64_t slow = 0; ///< handlers that took longer than slow_handler
};

/// A handler is to be shorter than this in 999 of 1,000 cases.
inline constexpr core::duration slow_handler = std::chrono::microseconds{500};

/// Lives for the length of one handler.
template <class Self>
class handler_timer {
 public:
  handler_timer(Self* self, handler_stats& stats) : self_(self), stats_(stats), begin_(self->clock().now()) {}
  handler_timer(const handler_timer&) = delete;
  handler_timer& operator=(const handler_timer&) = delete;
  ~handler_timer() {
    ++stats_.handled;
    const auto took = std::chrono::duration_cast<core::duration>(self_->clock().now() - begin_).count();
    stats_.slow += took > slow_handler.count() ? 1U : 0U;
    stats_.longest_ns = std::max(stats_.longest_ns, static_cast<std::uint64_t>(std::max<std::int64_t>(took, 0)));
  }

 private:
  Self* self_;
  handler_stats& stats_;
  core::timestamp begin_;
};

/// The reply to STATUS.
template <class Self>
actor_status make_status(Self* self, const handler_stats& stats, std::string role, std::string name,
                         std::string state) {
  actor_status s;
  s.role = std::move(role);
  s.name = std::move(name);
  s.state = std::move(state);
  s.mailbox_depth = self->mailbox().size();
  s.handled = stats.handled;
  s.longest_handler_ns = stats.longest_ns;
  s.slow_handlers = stats.slow;
  return s;
}

/// Exceptions stop at the edge of a handler: the actor ends with an error that names what was thrown, and the
/// Supervisor decides what comes next.
template <class Self>
void end_on_exception(Self* self) {
  self->set_exception_handler([](std::exception_ptr& thrown) -> caf::error {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      return make_error(node_error::handler_threw, e.what());
    } catch (...) {
      return make_error(node_error::handler_threw, "not a std::exception");
    }
  });
}

} // namespace rankwise
