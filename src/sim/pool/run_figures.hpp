#pragma once

#include "sim/pool/simulation_world.hpp"

#include <cstdint>

namespace rankwise::sim {

/// The figures of a run: the series over time, and what is summed up at its end.
class run_figures {
 public:
  explicit run_figures(simulation_world& world) : world_(world) {}

  /// Takes one sample of KV and queues.
  void sample();
  /// Sums up the run in the result of its world.
  void finish();

 private:
  [[nodiscard]] double busiest_to_mean_work() const;
  [[nodiscard]] double prefix_hit_share() const;

  simulation_world& world_;
  double kv_ratio_sum_ = 0; // over the samples, the fullest rank's KV over the mean
  std::uint64_t kv_ratio_count_ = 0;
};

} // namespace rankwise::sim
