#pragma once

#include "core/ids.hpp"
#include "core/step_pace.hpp"
#include "core/time.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace rankwise::core {

/// Learns a pace from ranks that step together. A step lasts as long as its longest decode batch and its longest piece
/// of a prompt take, on whichever ranks these are; outputs of one step come one after the other. What each rank
/// computes in a step is followed from what was placed there, a chunk at a time, and put right when prompts are seen to
/// end.
class lockstep_observer {
 public:
  /// The rank begins it with the next step.
  void placed(std::uint16_t rank, request_handle handle, double work_tokens, timestamp at);
  /// Its first token came.
  void prefilled(std::uint16_t rank, request_handle handle, timestamp at, step_pace& pace);
  /// It ended without one.
  void dropped(std::uint16_t rank, request_handle handle);
  struct after_output {
    double decoding = 0;     ///< streams on the rank
    double kv_tokens = 0;    ///< of these
    double chunk_tokens = 0; ///< prompt tokens that the rank computes in a step; 0 = not known
    bool starting = false;   ///< legs without a first token are there too
  };
  void output(std::uint16_t rank, timestamp at, const after_output& after, step_pace& pace);
  void closed(std::uint16_t rank);
  /// False: from now on it only follows.
  void learn(bool learns) noexcept { learns_ = learns; }

  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  struct prompt {
    request_handle handle = 0;
    double left = 0;
    timestamp at{};
    bool done = false; // in the step that is being watched
  };
  struct lane {
    std::deque<prompt> prompts;
    after_output after;
  };
  struct watched_step {
    timestamp begin{};
    timestamp end{}; // its first output
    bool seen = false;
    double decoding = 0; // of the rank with the longest batch
    double kv_tokens = 0;
    bool clear = true; // no leg of it was to begin decoding, now or later
  };

  lane& lane_of(std::uint16_t rank);
  void advance(timestamp at, step_pace& pace);
  void end_watched_step(step_pace& pace);
  [[nodiscard]] double steps_watched() const;
  double compute(lane& l) const;
  [[nodiscard]] bool idle() const;

  std::vector<lane> lanes_; // by rank number
  watched_step watched_;    // is learned from when the next one ends: then all of its outputs are here
  timestamp begin_{};       // of the step that runs
  std::uint64_t steps_ = 0;
  bool learns_ = true;
};

} // namespace rankwise::core
