#pragma once

#include "sim/pool/simulation_world.hpp"

#include <cstdint>

namespace rankwise::sim {

/// The clients of a simulation: when requests come, those that follow others after them and a time to think, and what
/// is noted when one ends.
class simulated_clients {
 public:
  /// Throws std::invalid_argument, which names the request, when one follows a later one.
  explicit simulated_clients(simulation_world& world) : world_(world), followers_(world.load) {}

  /// Lets the first request come.
  void start() { queue_arrival(0); }
  /// A request has come: it is open from now on, and the next one is on its way.
  void send(std::uint32_t request);
  /// A request has ended, complete or not. Does nothing when it had ended before.
  void end(std::uint32_t request, bool failed);
  /// No rank takes a request.
  void refuse(std::uint32_t request);

 private:
  void queue_arrival(std::size_t from);
  void let_followers_come(std::uint32_t request);

  simulation_world& world_;
  request_followers followers_;
};

} // namespace rankwise::sim
