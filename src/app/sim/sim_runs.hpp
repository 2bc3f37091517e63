#pragma once

#include "app/sim/sim_options.hpp"
#include "sim/simulation_result.hpp"
#include "sim/summary.hpp"
#include "sim/workload.hpp"

#include <string>
#include <vector>

namespace rankwise::app {

/// One workload played under one policy.
struct policy_run {
  std::string policy;
  sim::simulation_result result;
  sim::run_summary summary;
  double took_s = 0; ///< Seconds of real time that the simulation took.
};

/// One workload, and how it was played under each policy.
struct policy_runs {
  std::string workload;         ///< The built-in workload's name, or the trace's file name.
  double speed = 1;             ///< How many times faster than in the workload requests came.
  sim::workload load;           ///< What was played.
  std::vector<policy_run> runs; ///< In the order in which the policies were named; at least one.

  /// The workload and its speed, as headings name them.
  [[nodiscard]] std::string title() const;
};

/// Plays the workload of the options under each of their policies, and writes decision logs where they ask for them.
/// Throws std::runtime_error naming what cannot be read, written or done.
[[nodiscard]] policy_runs play_policies(const sim_options& o);

} // namespace rankwise::app
