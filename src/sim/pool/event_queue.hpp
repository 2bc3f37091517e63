#pragma once

#include "core/base/time.hpp"

#include <cstdint>
#include <queue>
#include <vector>

namespace rankwise::sim {

/// What is due in a simulation, and what the two numbers of its event mean.
enum class event_kind : std::uint8_t {
  arrival,   ///< a = request: its client sends it.
  deliver,   ///< a = request, b = pool + 2 x attempt: its leg reaches the engine.
  engine,    ///< a = pool, b = rank (0 of a lockstep group): a step ends or can begin.
  progress,  ///< a = index of a batch_progress, b = front end: it reaches the controller.
  report,    ///< a = index of a load report: it reaches the controllers.
  kv_asked,  ///< a = request, b = attempt: a decode rank's question reaches the prefill rank.
  kv_answer, ///< a = request, b = ready + 2 x attempt: the answer reaches the decode rank.
  happening, ///< a = index into simulation_options::happenings.
  detected,  ///< a = pool, b = rank: it has been frozen long enough to be noticed.
  sample,    ///< The series are sampled.
  tick,      ///< The controllers look for requests that waited too long.
};

struct event {
  core::timestamp at;
  std::uint64_t sequence = 0;
  event_kind what = event_kind::tick;
  std::uint32_t a = 0;
  std::uint32_t b = 0;

  bool operator>(const event& other) const noexcept {
    return at != other.at ? at > other.at : sequence > other.sequence;
  }
};

/// What is still to happen in a simulation: the earliest comes first, of equal times the one that was pushed first.
class event_queue {
 public:
  void push(core::timestamp at, event_kind what, std::uint32_t a = 0, std::uint32_t b = 0) {
    events_.push({at, ++sequence_, what, a, b});
  }
  [[nodiscard]] bool empty() const noexcept { return events_.empty(); }
  /// Takes out the next event; there must be one.
  [[nodiscard]] event pop() {
    const auto next = events_.top();
    events_.pop();
    return next;
  }

 private:
  std::uint64_t sequence_ = 0;
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
};

} // namespace rankwise::sim
