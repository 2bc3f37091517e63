#pragma once

#include "sim/pool_simulation.hpp"
#include "sim/workload.hpp"

#include <cstdint>

namespace rankwise::sim {

/// Which requests of a workload that has no classes get one, drawn by chance.
struct request_class_options {
  double high_share = 0;     ///< of priority 1
  double low_share = 0;      ///< of priority -1
  double deadline_share = 0; ///< with a deadline of their first token, whatever their class
  double deadline_slack = 3; ///< the deadline is `deadline_base_s` and so many times the TTFT on an idle pool
  double deadline_base_s = 1;
  std::uint64_t seed = 1;
};

/// `pool` says what a request needs on an idle pool.
void assign_classes(workload& load, const request_class_options& options, const simulation_options& pool);

} // namespace rankwise::sim
