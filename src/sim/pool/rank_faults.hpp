#pragma once

#include "sim/pool/engine_runner.hpp"
#include "sim/pool/leg_placement.hpp"
#include "sim/pool/simulated_clients.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>
#include <vector>

namespace rankwise::sim {

/// What happens to ranks: they open, die, slow down, join again, drain and freeze, with what that means for the
/// controllers and for the requests that are on them.
class rank_faults {
 public:
  rank_faults(simulation_world& world, simulated_clients& clients, leg_placement& placement, engine_runner& engines)
      : world_(world), clients_(clients), placement_(placement), engines_(engines) {}

  /// Announces every rank to the controllers.
  void start();
  /// The happening with this index is due.
  void happen(std::uint32_t index);
  /// A rank that froze so long ago is noticed and lost, unless it died meanwhile.
  void notice_frozen(std::uint32_t pool, std::uint16_t rank);

 private:
  void open(std::uint32_t pool, std::uint16_t rank);
  void freeze(std::uint32_t pool, std::uint16_t rank);
  void join(std::uint32_t pool, std::uint16_t rank);
  void drain(std::uint32_t pool, std::uint16_t rank);
  void lose(std::uint32_t pool, std::uint16_t rank);
  void take_legs_back(std::uint32_t pool, std::uint16_t rank, front_end& front, std::vector<std::uint32_t>& to_move);
  void replace_process(std::uint32_t pool, std::uint16_t rank);

  simulation_world& world_;
  simulated_clients& clients_;
  leg_placement& placement_;
  engine_runner& engines_;
};

} // namespace rankwise::sim
