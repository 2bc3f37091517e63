#pragma once

#include "core/base/time.hpp"
#include "core/placement/policy.hpp"
#include "core/placement/pool_controller.hpp"
#include "sim/engine_rank_model.hpp"
#include "sim/workload.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// A pool of ranks under a workload, in virtual time: the node's own pool_controller (policy, ledger, health,
/// admission) decides, and the ranks of `rankwise engine` do the work. One thread; the same options give the same run.
namespace rankwise::sim {

enum class pool_shape : std::uint8_t {
  unified, ///< ranks prefill and decode
  decode,  ///< ranks decode; the KV of a prompt is there when its request comes
  pair,    ///< a prefill pool and a decode pool, with the time that the KV takes between them
};
[[nodiscard]] std::string_view to_string(pool_shape s) noexcept;

/// How a controller learns what a rank says of itself.
struct load_path_options {
  core::duration period = std::chrono::milliseconds{50}; ///< a rank samples its load at most so often
  std::uint32_t every_steps = 1;                         ///< and only every so many steps; 0 = it reports nothing
  bool on_prefill = false;                               ///< also at each step that ends a prompt, whatever the period
  core::duration delay = std::chrono::milliseconds{1};   ///< from the sample to the controller
  double jitter = 0;                                     ///< the delay varies by up to this share
  double loss = 0;                                       ///< share of reports that never arrive
  std::optional<std::uint16_t> silent_rank;              ///< reports nothing
  bool counts_waiting_tokens = false; ///< the KV figure includes the prompts that wait, as SGLang's load snapshot does
};

/// What happens to a rank.
struct rank_happening {
  enum class kind : std::uint8_t {
    dies,    ///< its controller knows at once; requests with a token are lost, the others move
    slows,   ///< by `factor`, from its next step on
    joins,   ///< one that is down comes back as a new process, one that drains takes work again
    drains,  ///< gets no more work, and ends what it has
    freezes, ///< computes and says nothing more, but still gets work; it dies `freeze_detection` later
  };
  double at_s = 0;
  kind what = kind::slows;
  std::uint16_t rank = 0;
  double factor = 1;                               ///< of `slows`: steps take so many times longer
  core::pool_role pool = core::pool_role::prefill; ///< in a pair: its prefill or its decode pool
};

struct simulation_options {
  pool_shape shape = pool_shape::unified;
  bool lockstep = false; ///< every step lasts as long as the slowest rank's (DP attention)
  std::uint16_t ranks = 8;
  std::uint16_t prefill_ranks = 0; ///< of a pair; 0 = as many as `ranks`
  engine_rank_options engine;      ///< role and numbers_only are set by the simulation
  core::pool_options pool;         ///< policy, tuning, ledger, health and caps of every controller
  /// Instead of the policy that `pool` names.
  std::function<std::unique_ptr<core::policy>(const core::policy_options&)> make_policy;
  /// Is told what each controller is told and decides; by front end and pool (0, or 1 the prefill pool of a pair).
  std::function<core::decision_recorder*(std::uint32_t front_end, std::uint32_t pool)> recorder;
  load_path_options load_path;
  core::duration placement_delay = std::chrono::milliseconds{1}; ///< from the decision to the engine's queue
  core::duration output_delay = std::chrono::milliseconds{1};    ///< from a step's end to the controller
  std::uint32_t front_ends = 1;     ///< each with its own controllers, which see its own requests only
  bool oracle = false;              ///< the policy is given the true state of every rank
  std::uint32_t max_new_tokens = 0; ///< what clients ask for at most; 0 = the workload's longest output
  std::vector<rank_happening> happenings;
  core::duration freeze_detection = std::chrono::milliseconds{750}; ///< until a frozen rank is taken down
  std::uint64_t seed = 1;
  double kv_sample_s = 1.0; ///< period of the series; 0 = none
  bool record_steps = false;
  double time_limit_s = 0; ///< simulated; what is open then counts as unfinished; 0 = until all is done
};

/// One request's life. Times in seconds since the start; -1 = it did not happen.
struct request_result {
  double arrival_s = -1; ///< -1: not before the time limit
  double bound_s = -1;   ///< given a rank
  double first_token_s = -1;
  double end_s = -1;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0; ///< asked for
  std::uint32_t generated = 0;
  std::uint32_t cached = 0;
  std::int32_t priority = 0;
  std::optional<double> deadline_s; ///< from arrival to first token
  std::uint16_t rank = 0;           ///< unified or decode
  std::uint16_t prefill_rank = 0;   ///< of a pair
  bool refused = false;
  bool failed = false; ///< ended by an engine or lost with a rank
};

/// How often gaps between the tokens of a stream had which length: buckets of 1/64 of a power of two.
class gap_histogram {
 public:
  void add(core::duration gap, std::uint64_t count = 1);
  [[nodiscard]] double quantile_s(double q) const; ///< NaN when empty
  [[nodiscard]] double mean_s() const;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Upper edge in seconds and count of each bucket that is not empty, in order.
  [[nodiscard]] std::vector<std::pair<double, std::uint64_t>> buckets() const;

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_s_ = 0;
};

struct simulation_series {
  std::vector<double> at_s;
  std::vector<std::vector<double>> kv_share; ///< per rank of the unified or decode pool
  std::vector<std::vector<double>> queue;    ///< requests that wait, per rank of the unified or prefill pool
  std::vector<double> held;                  ///< requests that wait in the controllers
};

struct simulation_result {
  std::vector<request_result> requests; ///< as in the workload: of those that follow others not in order of arrival
  gap_histogram gaps;
  simulation_series series;
  double makespan_s = 0;           ///< end of the last request
  double busiest_to_mean_kv = 0;   ///< mean over time, while there is load, of the fullest rank's KV over the mean
  double busiest_to_mean_work = 0; ///< of prompt tokens computed in all, per rank
  double prefix_hit_share = 0;     ///< prompt tokens that the caches had, of all
  std::uint64_t steps = 0;
  std::vector<measured_step> recorded_steps; ///< of all ranks by their begin, when the options ask for them
  std::uint64_t retractions = 0;
  std::uint64_t event_hash = 0; ///< of every decision, first token and end, with their times
  std::uint64_t reports_delivered = 0;
  std::uint64_t held_most = 0;       ///< requests waiting in the controllers at once
  std::uint64_t charges_left = 0;    ///< in the ledgers, after all; 0 unless the time limit ended the run
  std::uint64_t held_left = 0;       ///< requests waiting in the controllers, after all
  std::vector<std::uint64_t> placed; ///< per rank of the unified or decode pool
};

/// The workload's requests must be in order of `arrival_s`, and follow earlier ones only.
[[nodiscard]] simulation_result simulate(const workload& load, const simulation_options& options);

/// Seconds from arrival to first token of a prompt of that length on an idle pool of this shape.
[[nodiscard]] double idle_ttft_s(const simulation_options& options, std::uint32_t input_tokens);

} // namespace rankwise::sim
