#pragma once

#include "sim/pool_simulation.hpp"

#include <string>
#include <vector>

/// The file of `rankwise sim --decisions`.
namespace rankwise::app {

struct policy_decisions {
  std::string policy;
  const std::vector<sim::request_result>& requests; ///< in the order of the workload, the same for every policy
};

/// A line for each request that got a rank: `request,time_s,rank` of one policy. Of several each has its own two
/// columns, `POLICY_time_s,POLICY`, which are empty where it gave the request no rank. A `pair` has the prefill rank
/// behind each rank.
[[nodiscard]] std::string decisions_csv(const std::vector<policy_decisions>& runs, bool pair);

} // namespace rankwise::app
