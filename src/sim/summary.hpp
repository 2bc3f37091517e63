#pragma once

#include "sim/pool_simulation.hpp"

#include <cstdint>

/// What a run of the simulator comes to.
namespace rankwise::sim {

struct run_summary {
  std::size_t requests = 0;
  std::size_t completed = 0;
  std::size_t refused = 0;
  std::size_t failed = 0;
  double ttft_mean_s = 0;
  double ttft_p50_s = 0;
  double ttft_p99_s = 0;
  double slowdown_mean = 0; ///< TTFT over the TTFT on an idle pool
  double slowdown_p99 = 0;
  double slowdown_max = 0;
  double gap_p50_s = 0; ///< between tokens of one stream
  double gap_p99_s = 0;
  double gap_mean_s = 0;
  double held_max_s = 0;    ///< longest wait in the controller
  double goodput_share = 0; ///< requests that completed with a TTFT within the target
  double tokens_per_s = 0;  ///< generated, to the end of the last request
  double busiest_to_mean_kv = 0;
  double busiest_to_mean_work = 0;
  double prefix_hit_share = 0;
  double ttft_bound_p99_s = 0; ///< P99 of the idle pool's TTFT: what the longest prompts need by themselves
};

/// A request meets its target when its TTFT is at most `slack_s` + `slowdown` x the TTFT on an idle pool.
struct ttft_target {
  double slack_s = 1;
  double slowdown = 3;
};

[[nodiscard]] run_summary summarise(const simulation_result& result, const simulation_options& options,
                                    const ttft_target& target = {});

/// Of the requests of one priority class that `deadline` tells apart: with one, without one.
struct class_summary {
  std::int32_t priority = 0;
  bool with_deadline = false;
  std::size_t requests = 0;
  double ttft_mean_s = 0;
  double ttft_p99_s = 0;
  double held_max_s = 0;          ///< longest wait in the controller
  double deadlines_met_share = 0; ///< first token in time; 0 without deadlines
};

/// The highest class first; one row when the workload has neither classes nor deadlines.
[[nodiscard]] std::vector<class_summary> summarise_classes(const simulation_result& result);

/// Of values that are not sorted; NaN when there are none.
[[nodiscard]] double quantile(std::vector<double> values, double q);

/// How many times faster the arrivals of `load` may come until the pool can do no more: the rate at which it works
/// through nine tenths of the requests when all of them are there at once, by the rule `total work left` with the true
/// state. Lengths stay. Of requests that follow others `arrival_s` counts: think times as they are, answers as if they
/// took no time, so that such a pool has somewhat less to do than the speed says. Means nothing for a closed loop,
/// whose clients wait for the pool however slow it is. 1 when all come at once.
[[nodiscard]] double saturation_speed(const workload& load, const simulation_options& options);

} // namespace rankwise::sim
