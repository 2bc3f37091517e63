#include "sim/request_classes.hpp"

#include "sim/random.hpp"

namespace rankwise::sim {

void assign_classes(workload& load, const request_class_options& options, const simulation_options& pool) {
  random_source random(options.seed);
  for (auto& r : load.requests) {
    const double at = random.uniform();
    if (at < options.high_share)
      r.priority = 1;
    else if (at < options.high_share + options.low_share)
      r.priority = -1;
    if (random.uniform() < options.deadline_share)
      r.deadline_s = options.deadline_base_s + options.deadline_slack * idle_ttft_s(pool, r.input_tokens);
  }
}

} // namespace rankwise::sim
