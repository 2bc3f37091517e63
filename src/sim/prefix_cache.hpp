#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

/// Blocks of prompt tokens whose KV is kept for later requests that begin alike.
namespace rankwise::sim {

/// Counts blocks; what a block is worth in tokens is the caller's affair. A block is either referenced by running
/// requests or evictable; evictable blocks leave in least-recently-used order. Bounded by its caller, which evicts
/// before it adds.
class prefix_cache {
 public:
  /// Leading blocks of `chain` that are here.
  [[nodiscard]] std::size_t match(std::span<const std::uint64_t> chain) const;
  /// Of the leading `count` blocks, how many no request refers to: acquiring them takes room from the evictable ones.
  [[nodiscard]] std::size_t evictable_among(std::span<const std::uint64_t> chain, std::size_t count) const;

  /// Refer to the first `count` blocks, which must be here.
  void acquire(std::span<const std::uint64_t> chain, std::size_t count);
  /// Add the blocks from index `from` on, referred to by the caller; returns how many were new (the others are shared).
  std::size_t insert(std::span<const std::uint64_t> chain, std::size_t from);
  /// Undo acquire and insert for the first `count` blocks.
  void release(std::span<const std::uint64_t> chain, std::size_t count);

  /// Drops at most `count` evictable blocks; returns how many.
  std::size_t evict(std::size_t count);

  [[nodiscard]] std::size_t referenced() const noexcept { return blocks_.size() - unused_.size(); }
  [[nodiscard]] std::size_t evictable() const noexcept { return unused_.size(); }

 private:
  struct block {
    std::uint32_t references = 0;
    std::list<std::uint64_t>::iterator position; ///< in unused_, valid while references is 0
  };
  std::unordered_map<std::uint64_t, block> blocks_;
  std::list<std::uint64_t> unused_; ///< oldest first
};

} // namespace rankwise::sim
