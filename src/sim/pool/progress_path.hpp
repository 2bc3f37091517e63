#pragma once

#include "core/placement/pool_controller.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>
#include <vector>

namespace rankwise::sim {

/// The way of outputs from ranks to controllers: what one step of a rank means for the requests of each front end, and
/// that this is known there `output_delay` later.
class progress_path {
 public:
  explicit progress_path(simulation_world& world) : world_(world), of_front_(world.front_ends.size()) {}

  /// From here on `of` gathers what this rank said, until `send`.
  void begin(std::uint32_t pool, std::uint16_t rank);
  /// What the controller of that front end will be told. Valid until the next call of any function.
  [[nodiscard]] core::batch_progress& of(std::uint32_t front_end);
  /// Sends what was gathered on its way.
  void send();

  /// The progress with this index, from its event, reaches its controller. That of a lost process is dropped.
  void deliver(std::uint32_t index, std::uint32_t front_end);
  /// Takes the end of a request's prefill leg out of all progress on its way: the leg was given up, and its late end
  /// must not be taken for that of the leg that comes instead.
  void forget_end_of_prefill(std::uint32_t request);

 private:
  struct progress_on_its_way {
    std::uint32_t pool = 0;
    core::batch_progress progress;
  };

  [[nodiscard]] std::uint32_t take_place();

  simulation_world& world_;
  std::uint32_t pool_ = 0;                        // of the rank whose outputs are gathered
  std::uint16_t rank_ = 0;                        // the rank whose outputs are gathered
  std::vector<std::uint32_t> of_front_;           // by front end: 1 + index of what is gathered for it; 0 = nothing
  std::vector<progress_on_its_way> on_their_way_; // by index; the places are used again
  std::vector<std::uint32_t> free_places_;
};

} // namespace rankwise::sim
