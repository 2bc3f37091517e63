#pragma once

#include "core/base/time.hpp"

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace rankwise::core {

/// One change of state of a rank, an actor, a pool or the node, and why.
struct state_event {
  std::uint64_t number = 0; ///< 1, 2, ... in order of happening
  timestamp at{};
  /// "rank_state", "rank_ejected", "rank_ejection_over", "actor_restart", "actor_parked", "operator", "node"
  std::string kind;
  std::string subject; ///< "decode/3", "load_forwarder"
  std::string change;  ///< "ready -> down"
  std::string cause;
};

/// The newest state changes of a node, for its operator. Any thread.
class event_log {
 public:
  static constexpr std::size_t events_max = 1000; ///< the oldest ones go first

  void add(timestamp at, std::string kind, std::string subject, std::string change, std::string cause) {
    const std::lock_guard guard{mutex_};
    events_.push_back({++last_, at, std::move(kind), std::move(subject), std::move(change), std::move(cause)});
    if (events_.size() > events_max)
      events_.pop_front();
  }

  /// Those with a number above `after`, oldest first.
  [[nodiscard]] std::vector<state_event> since(std::uint64_t after) const {
    const std::lock_guard guard{mutex_};
    std::vector<state_event> result;
    for (const auto& e : events_)
      if (e.number > after)
        result.push_back(e);
    return result;
  }

  /// The number of the newest one, kept or not; 0: nothing has happened yet.
  [[nodiscard]] std::uint64_t last() const {
    const std::lock_guard guard{mutex_};
    return last_;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<state_event> events_;
  std::uint64_t last_ = 0;
};

} // namespace rankwise::core
