#pragma once

#include "sim/pool/leg_placement.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>

namespace rankwise::sim {

/// Requests that wait in a controller until a rank has room: who comes in, whose turn it is, and whose patience ends.
class waiting_requests {
 public:
  waiting_requests(simulation_world& world, leg_placement& placement) : world_(world), placement_(placement) {}

  /// A request has come: it is placed at once when nobody waits before it, or else waits. When all places to wait are
  /// taken, the one whose turn it is is placed on a rank, or refused, without any wait.
  void enter(std::uint32_t request);
  /// Places those whose turn it is, as long as there are ranks for them.
  void place_next(front_end& front);
  /// Looks for those who waited too long, and places or refuses them.
  void tick();

 private:
  simulation_world& world_;
  leg_placement& placement_;
};

} // namespace rankwise::sim
