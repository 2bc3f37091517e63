#pragma once

#include "sim/pool/progress_path.hpp"
#include "sim/pool/report_path.hpp"
#include "sim/pool/simulated_clients.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>
#include <vector>

namespace rankwise::sim {

/// Runs the engines of a simulation: gives them what arrives, steps them when a step is due, and hears what they say:
/// tokens and ends for the clients, progress and load for the controllers.
class engine_runner {
 public:
  engine_runner(simulation_world& world, simulated_clients& clients, progress_path& progress, report_path& reports)
      : world_(world), clients_(clients), progress_(progress), reports_(reports) {}

  /// A placed leg reaches its engine, unless it was lost with the rank meanwhile.
  void deliver(std::uint32_t request, std::uint32_t pool);
  /// The engine event of a rank, or of a lockstep group (rank 0), is due.
  void drive(std::uint32_t pool, std::uint32_t slot);
  /// Stops a request's leg in its rank's engine. It is the end of the attempt: nothing more is heard of it.
  void abort(std::uint32_t request, std::uint32_t pool);

  /// Hears what a rank has to say and queues its next engine event: after anything that was done to its engine.
  void follow_up(std::uint32_t pool, std::uint16_t rank);
  /// Queues the next engine event of a rank.
  void schedule(std::uint32_t pool, std::uint32_t rank);

 private:
  void step_group(std::uint32_t pool);
  void step_rank(std::uint32_t pool, std::uint16_t rank);
  void record_step(const engine_rank_model& engine, std::uint64_t steps_before);
  void hear(std::uint32_t pool, std::uint16_t rank);
  [[nodiscard]] bool hear_tokens(const request_progress& item, std::uint16_t rank);
  [[nodiscard]] bool hear_prefill(const request_progress& item, std::uint16_t rank);
  void hear_abort(std::uint32_t request, std::uint32_t pool, std::uint16_t rank);
  void hear_kv(const rank_outputs& said);

  simulation_world& world_;
  simulated_clients& clients_;
  progress_path& progress_;
  report_path& reports_;
  std::vector<std::uint64_t> steps_before_; // scratch: of the ranks of a lockstep group
};

} // namespace rankwise::sim
