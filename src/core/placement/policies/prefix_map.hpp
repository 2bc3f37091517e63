#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace rankwise::core {

/// Which ranks are likely to have the KV of which prompt blocks: what was placed there lately, oldest forgotten first.
/// A guess: engines evict by their own rules, and say nothing of it on this wire.
class prefix_map {
 public:
  /// Blocks remembered for each rank.
  explicit prefix_map(std::size_t blocks_per_rank_max) : blocks_per_rank_max_(blocks_per_rank_max) {}

  struct match {
    std::uint16_t rank = 0;
    std::size_t blocks = 0; ///< leading blocks of the prompt
  };
  /// Ranks that have at least the first block. Valid until the next call.
  [[nodiscard]] std::span<const match> find(std::span<const std::uint64_t> blocks) const;
  /// Of one rank, in what find() gave; 0 when it is not among them.
  [[nodiscard]] static std::size_t blocks_on(std::uint16_t rank, std::span<const match> matches) noexcept {
    for (const auto& m : matches)
      if (m.rank == rank)
        return m.blocks;
    return 0;
  }
  /// The prompt was placed on the rank.
  void placed(std::uint16_t rank, std::span<const std::uint64_t> blocks);
  /// Its process is another one now.
  void forget(std::uint16_t rank);
  [[nodiscard]] std::size_t size(std::uint16_t rank) const { return rank < ranks_.size() ? ranks_[rank].size() : 0; }

 private:
  struct holder {
    std::uint16_t rank;
    std::list<std::uint64_t>::iterator position;
  };
  void drop_oldest(std::uint16_t rank);

  std::size_t blocks_per_rank_max_;
  std::unordered_map<std::uint64_t, std::vector<holder>> blocks_;
  std::vector<std::list<std::uint64_t>> ranks_; // least recently placed first
  mutable std::vector<match> found_;
};

} // namespace rankwise::core
