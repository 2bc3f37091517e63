#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// A whole node from one seed: the real actors on CAF's test scheduler, virtual time, simulated links, engines and
/// clients. Everything by chance comes from the seed: the shape of the node, delays, faults, what clients do, and which
/// actor handles its next message first.
namespace rankwise::test {

/// A bug of the edges around the actors, so that tests can show that it would be seen.
enum class planted_bug : std::uint8_t {
  none,
  charge_released_twice,        ///< an end order is carried out, and comes again when the request ends
  epoch_not_compared,           ///< outputs of a ghost speak under the epoch in which their request was placed
  abort_overtakes_its_request,  ///< aborts reach an engine before what was sent earlier
  token_delivered_after_outcome ///< a client is handed a token after the end of its stream
};

struct simulation_options {
  std::uint64_t seed = 1;
  planted_bug bug = planted_bug::none;
  bool trace = false;            ///< every step on stderr
  bool record_decisions = false; ///< of every controller, made again in the end
  std::uint16_t managers = 0;    ///< RequestManagers of the node; 0: one, two or four, by the seed
};

/// What happened; sums over many seeds show that the faults are real.
struct simulation_counts {
  std::uint64_t requests = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t refused = 0;
  std::uint64_t tokens = 0;
  std::uint64_t moved = 0;
  std::uint64_t faults = 0;
  std::uint64_t actor_crashes = 0;
  std::uint64_t epochs = 0; ///< HELLOs and reconnections after the first of each rank
  std::uint64_t messages = 0;
  std::uint64_t decisions_replayed = 0;
  simulation_counts& operator+=(const simulation_counts& other);
};

struct simulation_result {
  std::uint64_t hash = 0; ///< of the history, of what clients and engines saw, and of every fault
  std::vector<std::string> violations;
  simulation_counts counts;
};

[[nodiscard]] simulation_result simulate(const simulation_options& options);

} // namespace rankwise::test
