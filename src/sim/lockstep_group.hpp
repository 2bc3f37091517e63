#pragma once

#include "core/base/time.hpp"
#include "sim/engine_rank_model.hpp"

#include <optional>
#include <span>
#include <vector>

/// Ranks that compute together, as under DP attention: a step of each lasts as long as the slowest one's, and a rank
/// without work takes part with an empty batch, so that a request that reaches it waits for the next common step.
namespace rankwise::sim {

class lockstep_group {
 public:
  /// The ranks must outlive the group and be stepped by it alone.
  explicit lockstep_group(std::vector<engine_rank_model*> ranks) : ranks_(std::move(ranks)) {}

  [[nodiscard]] std::optional<core::timestamp> next_event_time() const;
  /// Another process in the place of rank i; what the old one had begun is lost.
  void replace(std::size_t i, engine_rank_model* rank) { ranks_[i] = rank; }

  /// `outputs[i]` gets what rank i has to say.
  void step(core::timestamp now, std::span<rank_outputs> outputs);

 private:
  [[nodiscard]] bool frozen() const;

  std::vector<engine_rank_model*> ranks_;
  std::optional<core::timestamp> step_end_;
  core::duration step_length_{};
};

} // namespace rankwise::sim
