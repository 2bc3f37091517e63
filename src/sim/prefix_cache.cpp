#include "sim/prefix_cache.hpp"

#include <algorithm>
#include <cassert>

namespace rankwise::sim {

std::size_t prefix_cache::match(std::span<const std::uint64_t> chain) const {
  const auto missing =
      std::find_if(chain.begin(), chain.end(), [&](std::uint64_t hash) { return !blocks_.contains(hash); });
  return static_cast<std::size_t>(missing - chain.begin());
}

std::size_t prefix_cache::evictable_among(std::span<const std::uint64_t> chain, std::size_t count) const {
  return static_cast<std::size_t>(std::count_if(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(count),
                                                [&](std::uint64_t hash) { return blocks_.at(hash).references == 0; }));
}

void prefix_cache::acquire(std::span<const std::uint64_t> chain, std::size_t count) {
  for (const std::uint64_t hash : chain.first(count)) {
    const auto found = blocks_.find(hash);
    assert(found != blocks_.end());
    if (found->second.references++ == 0) {
      unused_.erase(found->second.position);
    }
  }
}

std::size_t prefix_cache::insert(std::span<const std::uint64_t> chain, std::size_t from) {
  std::size_t added = 0;
  for (const std::uint64_t hash : chain.subspan(from)) {
    const auto [found, is_new] = blocks_.try_emplace(hash);
    if (is_new) {
      ++added;
    } else if (found->second.references == 0) {
      unused_.erase(found->second.position);
    }
    ++found->second.references;
  }
  return added;
}

void prefix_cache::release(std::span<const std::uint64_t> chain, std::size_t count) {
  // The end of a chain is of no use without its beginning, so it is put where it leaves first.
  for (std::size_t i = count; i-- > 0;) {
    const auto found = blocks_.find(chain[i]);
    assert(found != blocks_.end() && found->second.references > 0);
    if (--found->second.references == 0) {
      found->second.position = unused_.insert(unused_.end(), chain[i]);
    }
  }
}

std::size_t prefix_cache::evict(std::size_t count) {
  const std::size_t evicted = std::min(count, unused_.size());
  for (std::size_t i = 0; i < evicted; ++i) {
    blocks_.erase(unused_.front());
    unused_.pop_front();
  }
  return evicted;
}

} // namespace rankwise::sim
