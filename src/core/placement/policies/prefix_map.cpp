#include "core/placement/policies/prefix_map.hpp"

#include <algorithm>

namespace rankwise::core {

std::span<const prefix_map::match> prefix_map::find(std::span<const std::uint64_t> blocks) const {
  found_.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto entry = blocks_.find(blocks[i]);
    if (entry == blocks_.end())
      break;
    if (i == 0) {
      for (const auto& h : entry->second)
        found_.push_back({h.rank, 1});
      continue;
    }
    bool any = false;
    for (auto& m : found_) {
      if (m.blocks != i)
        continue;
      for (const auto& h : entry->second) {
        if (h.rank != m.rank)
          continue;
        ++m.blocks;
        any = true;
        break;
      }
    }
    if (!any)
      break;
  }
  return found_;
}

void prefix_map::placed(std::uint16_t rank, std::span<const std::uint64_t> blocks) {
  if (rank >= ranks_.size())
    ranks_.resize(rank + std::size_t{1});
  auto& order = ranks_[rank];
  // The end of a prompt is of no use without its beginning, so the beginning is the newest.
  for (std::size_t i = blocks.size(); i-- > 0;) {
    auto& holders = blocks_[blocks[i]];
    const auto mine = std::find_if(holders.begin(), holders.end(), [&](const holder& h) { return h.rank == rank; });
    if (mine != holders.end())
      order.splice(order.end(), order, mine->position);
    else
      holders.push_back({rank, order.insert(order.end(), blocks[i])});
  }
  while (order.size() > blocks_per_rank_max_)
    drop_oldest(rank);
}

void prefix_map::drop_oldest(std::uint16_t rank) {
  auto& order = ranks_[rank];
  const auto entry = blocks_.find(order.front());
  std::erase_if(entry->second, [&](const holder& h) { return h.rank == rank; });
  if (entry->second.empty())
    blocks_.erase(entry);
  order.pop_front();
}

void prefix_map::forget(std::uint16_t rank) {
  if (rank >= ranks_.size())
    return;
  while (!ranks_[rank].empty())
    drop_oldest(rank);
}

} // namespace rankwise::core
