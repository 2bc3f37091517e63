#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/placement/policies/step_pace.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace rankwise::core {

/// Prompt tokens that an engine computes in a step, by what it registered. Too few to be meant count as unknown: no
/// engine is that slow, and a prompt of a million tokens must not be followed through a million steps.
[[nodiscard]] constexpr double chunk_tokens_of(double registered) noexcept {
  constexpr double unknown = 8192;
  constexpr double least = 64;
  return registered >= least ? registered : unknown;
}

/// A step of an engine that all is known of: on one rank, or on several in lockstep.
struct step_seen {
  double seconds = 0;
  double steps = 1;    ///< more than one where only the last of them had an output: nothing decoded, a prompt was long
  double decoding = 0; ///< streams of the rank whose batch took longest
  double kv_tokens = 0;
  double prompt_tokens = 0; ///< of the longest piece in each of the steps, in all
};

/// Watches ranks that step together; a rank that steps alone is watched by itself. A step lasts as long as its longest
/// decode batch and its longest piece of a prompt take, on whichever ranks these are; outputs of one step come one
/// after the other. What each rank computes in a step is followed from what was placed there, a chunk at a time, and
/// put right when prompts are seen to end. Where an output begins a new step, the one before is told.
class step_observer {
 public:
  /// The rank begins it with the next step.
  void placed(std::uint16_t rank, request_handle handle, double work_tokens, timestamp at);
  /// Its first token came.
  std::optional<step_seen> prefilled(std::uint16_t rank, request_handle handle, timestamp at,
                                     const step_pace::coefficients& pace);
  /// It ended without one.
  void dropped(std::uint16_t rank, request_handle handle);
  struct after_output {
    double decoding = 0;     ///< streams on the rank
    double kv_tokens = 0;    ///< of these
    double chunk_tokens = 0; ///< prompt tokens that the rank computes in a step; 0 = not known
    bool starting = false;   ///< legs without a first token are there too
  };
  std::optional<step_seen> output(std::uint16_t rank, timestamp at, const after_output& after,
                                  const step_pace::coefficients& pace);
  void closed(std::uint16_t rank);

  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  struct prompt {
    request_handle handle = 0;
    double left = 0;
    timestamp at{};
    bool done = false; // in the step that is being watched
  };
  struct lane {
    std::vector<prompt> prompts;
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
  std::optional<step_seen> advance(timestamp at, const step_pace::coefficients& pace);
  std::optional<step_seen> end_watched_step();
  [[nodiscard]] double steps_watched() const;
  double compute(lane& l) const;
  [[nodiscard]] bool idle() const;

  std::vector<lane> lanes_; // by rank number
  watched_step watched_;    // is told when the next one ends: then all of its outputs are here
  timestamp begin_{};       // of the step that runs
  std::uint64_t steps_ = 0;
};

} // namespace rankwise::core
