#pragma once

#include "core/base/ids.hpp"
#include "io/zmq/engine_hub_options.hpp"
#include "io/zmq/rank_endpoint.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace rankwise::io {

/// Which endpoint serves which rank at this moment, and where a rank is on the load board: one slot per possible rank,
/// pool after pool. Every thread may call it; the sender thread alone changes it. It shares ownership of the endpoints.
class endpoint_directory {
 public:
  /// One slot for each of `ranks_max` ranks of every pool.
  explicit endpoint_directory(const std::vector<hub_pool_options>& pools);

  /// How many slots such pools take.
  [[nodiscard]] static std::size_t slots_of(const std::vector<hub_pool_options>& pools) noexcept;
  /// The slot of a rank. Throws std::out_of_range when there is no such pool.
  [[nodiscard]] std::size_t slot_of(core::rank_id rank) const { return slot_base_.at(rank.pool) + rank.rank; }

  /// The endpoint that serves a rank; null when none does, and for a rank that cannot exist.
  [[nodiscard]] rank_endpoint_ptr find(core::rank_id rank) const;
  /// From here on `endpoint` serves its rank, in place of the one that did.
  void put(const rank_endpoint_ptr& endpoint);
  /// `endpoint` no longer serves its rank. Does nothing when another one does.
  void remove(const rank_endpoint_ptr& endpoint);

  /// A rank was seen that says that its pool has several; this stays so.
  void note_several_ranks(std::uint16_t pool) noexcept { several_ranks_[pool].store(true, std::memory_order_relaxed); }
  /// Whether the pool is known to have several ranks: only then is there something to choose.
  [[nodiscard]] bool has_several_ranks(std::uint16_t pool) const noexcept {
    return several_ranks_[pool].load(std::memory_order_relaxed);
  }

 private:
  std::vector<std::size_t> slot_base_;                 // by pool
  std::vector<std::uint16_t> ranks_max_;               // by pool
  std::unique_ptr<std::atomic<bool>[]> several_ranks_; // by pool

  mutable std::mutex mutex_;
  std::vector<rank_endpoint_ptr> serving_; // by slot; under mutex_
};

} // namespace rankwise::io
