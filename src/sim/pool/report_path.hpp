#pragma once

#include "core/load/load_report.hpp"
#include "sim/pool/simulation_world.hpp"

#include <cstdint>
#include <vector>

namespace rankwise::sim {

/// The way of load reports from ranks to controllers, as `load_path_options` says: when a rank samples its load, and
/// how late its report comes, if it does.
class report_path {
 public:
  explicit report_path(simulation_world& world) : world_(world) {}

  /// A rank said something: it samples its load when that is due. `prefilled`: the step ended a prompt.
  void sample(std::uint32_t pool, std::uint16_t rank, bool prefilled);
  /// The report with this index, from its event, reaches the controllers.
  void deliver(std::uint32_t index);

 private:
  struct report_on_its_way {
    std::uint32_t pool = 0;
    core::load_report report;
  };

  [[nodiscard]] bool is_due(const rank_seat& seat, bool prefilled) const;
  [[nodiscard]] std::uint32_t take_place();

  simulation_world& world_;
  std::vector<report_on_its_way> on_their_way_; // by index; the places are used again
  std::vector<std::uint32_t> free_places_;
};

} // namespace rankwise::sim
