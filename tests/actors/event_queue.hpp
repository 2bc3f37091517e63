#pragma once

#include "core/base/time.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace rankwise::test {

/// What the world outside the actors does at which virtual time. Equal times keep the order in which they were asked
/// for.
class event_queue {
 public:
  void at(core::timestamp when, std::function<void()> what) {
    events_.emplace(std::pair{when, asked_++}, std::move(what));
  }

  [[nodiscard]] std::optional<core::timestamp> next_time() const {
    if (events_.empty())
      return std::nullopt;
    return events_.begin()->first.first;
  }

  void run_next() {
    auto next = events_.extract(events_.begin());
    next.mapped()();
  }

 private:
  std::map<std::pair<core::timestamp, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t asked_ = 0;
};

} // namespace rankwise::test
