#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/rank/expected_silence.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rankwise::core {

/// docs/state_machines.md draws the transitions and numbers them.
enum class rank_state : std::uint8_t {
  joining = 0,  ///< said HELLO, has not registered
  ready = 1,    ///< takes work
  suspect = 2,  ///< silent while work is outstanding: no new work, old work kept
  down = 3,     ///< dead, frozen or cut off: its work ends or moves
  draining = 4, ///< an operator wants it empty: no new work, old work ends
  parked = 5,   ///< its actor crashed too often
  drained = 6,  ///< as draining, and nothing is left on it
  removed = 7,  ///< an operator took it out: it is forgotten
};

inline constexpr std::uint8_t rank_state_count = 8;
[[nodiscard]] std::string_view to_string(rank_state s) noexcept;

/// What a rank that takes work tells its controller.
struct rank_announcement {
  rank_id rank;
  rank_epoch epoch = 0;
  std::uint64_t kv_capacity = 0;
  std::uint32_t max_running = 0;
  std::uint64_t chunk_tokens = 0;
  std::uint32_t data_parallel_size = 1;
  bool renewed = false;                 ///< not the first epoch of this rank: starts at a small share
  rank_state state = rank_state::ready; ///< or suspect, draining, drained
};

struct rank_timing {
  /// Work is outstanding and nothing was heard for longer than this explains: suspect. A frozen process or a cut link
  /// is told by heartbeats long before that.
  expected_silence::options silence;
  /// Silence of this many times what is explained: the engine hangs although its link answers.
  double hung_factor = 3;
  /// From HELLO to the registration; then the rank is down and its endpoints are closed. 0: no limit. Engines may load
  /// their model in between, and one whose endpoints are gone has to be started again: longer than any model takes.
  duration registration_max = std::chrono::hours{1};
};

/// Why a rank changed state, for people.
struct rank_transition {
  rank_state from = rank_state::joining;
  rank_state to = rank_state::joining;
  rank_epoch epoch = 0;
  std::string cause;
};

/// The life of one rank, as its DPRank actor sees it. Every input returns the transition it caused, if any.
class rank_machine {
 public:
  rank_machine(rank_id id, rank_timing timing) : id_(id), timing_(timing), silence_(timing.silence) {}

  /// T1/T6: a HELLO opened a new incarnation.
  std::optional<rank_transition> on_hello(rank_epoch epoch, std::string_view cause);
  /// T2: it registered; it takes work.
  std::optional<rank_transition> on_registered(rank_epoch epoch, timestamp now);
  /// T5: link lost, ENGINE_CORE_DEAD. Older epochs are ignored.
  std::optional<rank_transition> on_lost(rank_epoch epoch, std::string_view cause);
  /// T7: the same process is back on its old endpoints, as a new epoch.
  std::optional<rank_transition> on_reconnected(rank_epoch epoch, timestamp now);
  /// T8: known from an earlier process of this node, not yet reconnected.
  std::optional<rank_transition> on_restored(rank_epoch epoch);
  /// T9: an operator wants the rank empty, at the latest at `deadline`. Lasts until undrain or a HELLO.
  std::optional<rank_transition> on_drain(timestamp deadline);
  /// T11: takes work again.
  std::optional<rank_transition> on_undrain(timestamp now);
  /// T10: the controller gives it no more work, and `requests` are left on it.
  std::optional<rank_transition> on_drain_progress(timestamp now, std::uint32_t requests);
  /// What a controller knows of the rank's work.
  struct outstanding {
    std::uint32_t requests = 0;
    std::uint64_t prefill_tokens = 0;   ///< of prompts to do
    std::uint64_t prefilled_tokens = 0; ///< of prompts done, ever; starts again at 0 with an epoch or a controller
  };

  /// T3/T4: called now and then with what is outstanding on the rank and when its link last brought an output.
  std::optional<rank_transition> on_tick(timestamp now, const outstanding& work, timestamp last_output);

  /// The silence is longer than anything explains: its link is to be given up.
  [[nodiscard]] bool hangs() const noexcept { return hangs_; }

  /// What is learned about its silences.
  [[nodiscard]] const expected_silence& silence() const noexcept { return silence_; }

  [[nodiscard]] rank_state state() const noexcept { return state_; }
  /// Takes dispatches that are on their way, and aborts.
  [[nodiscard]] bool is_linked() const noexcept {
    return state_ == rank_state::ready || state_ == rank_state::suspect || state_ == rank_state::draining ||
           state_ == rank_state::drained;
  }
  [[nodiscard]] bool drain_wanted() const noexcept { return drain_wanted_; }
  [[nodiscard]] rank_epoch epoch() const noexcept { return epoch_; }
  [[nodiscard]] rank_id id() const noexcept { return id_; }

 private:
  rank_transition go(rank_state to, std::string_view cause);
  rank_transition open(rank_epoch epoch, timestamp now, std::string_view cause);

  rank_id id_;
  rank_timing timing_;
  expected_silence silence_;
  rank_state state_ = rank_state::joining;
  rank_epoch epoch_ = 0;
  timestamp quiet_since_{}; // last output, or when work became outstanding on a quiet rank
  bool was_outstanding_ = false;
  std::uint64_t prefilled_before_ = 0; // when the present silence began
  timestamp silent_at_{};              // the last tick
  duration ended_silence_{};           // ended at the last tick, not learned yet
  bool hangs_ = false;
  bool drain_wanted_ = false;
  timestamp drain_deadline_{};
};

} // namespace rankwise::core
