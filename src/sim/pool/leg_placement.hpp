#pragma once

#include "core/placement/orders.hpp"
#include "sim/pool/engine_runner.hpp"
#include "sim/pool/progress_path.hpp"
#include "sim/pool/simulated_clients.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>

namespace rankwise::sim {

/// Gives requests ranks, as their controllers decide: one, or of a pair a prefill and a decode rank, both or none. And
/// takes a leg back whose partner lost its rank.
class leg_placement {
 public:
  leg_placement(simulation_world& world, simulated_clients& clients, progress_path& progress, engine_runner& engines)
      : world_(world), clients_(clients), progress_(progress), engines_(engines) {}

  /// Asks for all ranks that a request needs. False: it has to wait, which only happens when it may. Otherwise it was
  /// placed, or refused for good.
  [[nodiscard]] bool place(std::uint32_t request, bool may_wait);
  /// Places a request that may not wait: it is placed or refused.
  void place_or_refuse(std::uint32_t request) { static_cast<void>(place(request, false)); }
  /// How a controller is asked for a rank of one pool.
  [[nodiscard]] core::leg_request leg_of(std::uint32_t request, bool may_wait) const;

  /// The request's prefill rank is gone: its decode leg, which waits for that KV, goes with it.
  void give_up_decode_leg(front_end& front, std::uint32_t request);
  /// The request's decode rank is gone, or there was none to be had: its prefill leg, whose KV nobody wants, goes too.
  void give_up_prefill_leg(front_end& front, std::uint32_t request);

 private:
  enum class answer : std::uint8_t { placed, waits, refused };
  [[nodiscard]] answer place_all(std::uint32_t request, bool may_wait);
  [[nodiscard]] answer place_leg(std::uint32_t request, std::uint32_t pool, bool may_wait);
  void take_rank(std::uint32_t request, std::uint32_t pool, const core::placement& placed);

  simulation_world& world_;
  simulated_clients& clients_;
  progress_path& progress_;
  engine_runner& engines_;
};

} // namespace rankwise::sim
