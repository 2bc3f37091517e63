#pragma once

#include "sim/pool/engine_runner.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>

namespace rankwise::sim {

/// The way of a prompt's KV to the rank that decodes: the question to the prefill rank, and its answer. Where there is
/// only a decode pool the KV is there at once.
class kv_handover {
 public:
  kv_handover(simulation_world& world, engine_runner& engines) : world_(world), engines_(engines) {}

  /// The decode rank of a request asks for the KV of its prompt.
  void asked(std::uint32_t request, std::uint32_t attempt);
  /// The prefill rank of a request has sent the KV (`ready`), or cannot.
  void answered(std::uint32_t request, std::uint32_t attempt, bool ready);

 private:
  simulation_world& world_;
  engine_runner& engines_;
};

} // namespace rankwise::sim
