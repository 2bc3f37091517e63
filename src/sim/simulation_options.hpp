#pragma once

#include "core/base/time.hpp"
#include "core/placement/policy.hpp"
#include "core/placement/pool_controller.hpp"
#include "sim/engine_rank_model.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

/// What a simulation of a pool is told: which ranks, which policy, how it learns of their load, and what goes wrong.
namespace rankwise::sim {

/// How the ranks of a simulation share the work of a request.
enum class pool_shape : std::uint8_t {
  unified, ///< One pool whose ranks prefill and decode.
  decode,  ///< One pool whose ranks decode; the KV of a prompt is there when its request comes.
  pair,    ///< A prefill pool and a decode pool, with the time that the KV takes between them.
};
/// "unified", "decode" or "pd".
[[nodiscard]] std::string_view to_string(pool_shape s) noexcept;

/// How a controller learns what a rank says of its load.
struct load_path_options {
  core::duration period = std::chrono::milliseconds{50}; ///< A rank samples its load at most once in this time ...
  std::uint32_t every_steps = 1; ///< ... and at most once in this many steps; 0: it never reports.
  bool on_prefill = false;       ///< It also samples its load at each step that ends a prompt, whatever the period.
  core::duration delay = std::chrono::milliseconds{1}; ///< The time from a sample until the controller has it.
  double jitter = 0;                                   ///< The delay varies by up to this share of it (0 to 1).
  double loss = 0;                                     ///< The share of reports that never arrive (0 to 1).
  std::optional<std::uint16_t> silent_rank;            ///< The number of a rank that never reports.
  /// The reported KV includes the prompts that wait, as SGLang's load snapshot counts.
  bool counts_waiting_tokens = false;
};

/// Something that happens to one rank at one moment.
struct rank_happening {
  enum class kind : std::uint8_t {
    dies,    ///< Its controller knows at once; requests that showed a token are lost, the others move.
    slows,   ///< Its steps take `factor` times as long, from its next one on.
    joins,   ///< A rank that is down comes back as a new process; one that drains takes work again.
    drains,  ///< It gets no more work, and ends what it has.
    freezes, ///< It computes and says nothing more, but still gets work; it dies `freeze_detection` later.
  };
  double at_s = 0; ///< Seconds since the start.
  kind what = kind::slows;
  std::uint16_t rank = 0;                          ///< The rank's number; one that the pool does not have is ignored.
  double factor = 1;                               ///< Of `slows`: how many times as long a step takes.
  core::pool_role pool = core::pool_role::prefill; ///< Of a pair: in its prefill or in its decode pool.
};

/// Everything that a simulation is told besides its workload.
struct simulation_options {
  pool_shape shape = pool_shape::unified;
  bool lockstep = false;           ///< Every step lasts as long as the slowest rank's, as under DP attention.
  std::uint16_t ranks = 8;         ///< Ranks of the pool, of a pair those of the decode pool; 0 is refused.
  std::uint16_t prefill_ranks = 0; ///< Ranks of a pair's prefill pool; 0 = as many as `ranks`.
  engine_rank_options engine;      ///< Of every rank; its role and `numbers_only` are set by the simulation.
  core::pool_options pool;         ///< Policy, tuning, ledger, health and caps of every controller.
  /// Makes the policy of each controller, instead of the one that `pool` names.
  std::function<std::unique_ptr<core::policy>(const core::policy_options&)> make_policy;
  /// Gives the recorder that is told what a controller is told and decides, by front end and pool (0, or 1 the prefill
  /// pool of a pair); a null one records nothing.
  std::function<core::decision_recorder*(std::uint32_t front_end, std::uint32_t pool)> recorder;
  load_path_options load_path;
  core::duration placement_delay = std::chrono::milliseconds{1}; ///< From a decision to the engine's queue.
  core::duration output_delay = std::chrono::milliseconds{1};    ///< From the end of a step to the controller.
  std::uint32_t front_ends = 1;     ///< Each has controllers of its own, which see its own requests only.
  bool oracle = false;              ///< The policy is given the true state of every rank.
  std::uint32_t max_new_tokens = 0; ///< What every client asks for at most; 0 = the workload's longest output.
  std::vector<rank_happening> happenings;
  core::duration freeze_detection = std::chrono::milliseconds{750}; ///< How long a rank is frozen until it is lost.
  std::uint64_t seed = 1;    ///< Of all that is left to chance: the same seed gives the same run.
  double kv_sample_s = 1.0;  ///< Seconds between two samples of the series; 0 = no series.
  bool record_steps = false; ///< Keep every step, for `simulation_result::recorded_steps`.
  double time_limit_s = 0;   ///< Simulated seconds after which the run ends, unfinished; 0 = until all is done.
};

} // namespace rankwise::sim
