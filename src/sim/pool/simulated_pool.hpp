#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "sim/engine_rank_model.hpp"
#include "sim/lockstep_group.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace rankwise::sim {

/// A moment that does not come.
inline constexpr core::timestamp never = core::timestamp::max();
/// The epoch of every rank's first process.
inline constexpr core::rank_epoch first_epoch = 1;

/// The place of one rank in a simulated pool, through all the processes that have it one after the other.
struct rank_seat {
  std::unique_ptr<engine_rank_model> engine;          ///< Its present process; idle while the rank is down.
  core::rank_epoch epoch = first_epoch;               ///< Of the present process.
  bool alive = true;                                  ///< The controllers may place on it.
  bool draining = false;                              ///< It gets no more work.
  core::timestamp frozen_since = never;               ///< `never`: it is not frozen.
  core::timestamp scheduled = never;                  ///< When its queued engine event is due.
  core::timestamp sampled_at{-std::chrono::hours{1}}; ///< When its load was last sampled ...
  std::uint64_t sampled_step = 0;                     ///< ... and after how many steps.
  std::uint64_t report_sequence = 0;                  ///< Load reports that it sent.
  std::uint64_t prompt_tokens_computed = 0;           ///< Over all its processes.
  std::uint64_t undelivered_tokens = 0;               ///< Prompt tokens of requests on their way to it.
  std::uint32_t undelivered = 0;                      ///< Requests on their way to it.

  /// A request was placed on the rank and is on its way.
  void send_off(std::uint64_t tokens) noexcept;
  /// A request has reached the rank, or never will.
  void end_way(std::uint64_t tokens) noexcept;
};

/// The simulated ranks of one pool, independent or in lockstep.
struct simulated_pool {
  core::pool_role role = core::pool_role::unified;
  std::vector<rank_seat> seats;        ///< By rank.
  std::vector<rank_outputs> outputs;   ///< By rank: what it said and nobody has heard yet.
  std::optional<lockstep_group> group; ///< All ranks, when they compute together.

  /// The position of the event that drives a rank: of a lockstep group all have the first one's.
  [[nodiscard]] std::uint32_t slot_of(std::uint32_t rank) const noexcept { return group ? 0 : rank; }
  /// When the rank, or its group, has something to do; nullopt when only a new request can change anything.
  [[nodiscard]] std::optional<core::timestamp> next_event_time(std::uint32_t rank) const;
};

/// Makes a pool of `ranks` idle ranks; rank i draws its chance from `seed` + i.
[[nodiscard]] simulated_pool make_simulated_pool(const engine_rank_options& engine, std::size_t ranks, bool lockstep,
                                                 std::uint64_t seed);

} // namespace rankwise::sim
