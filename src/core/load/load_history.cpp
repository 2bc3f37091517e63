#include "core/load/load_history.hpp"

#include <algorithm>

namespace rankwise::core {

void load_history::add(const std::vector<rank_row>& rows) {
  const std::lock_guard guard{mutex_};
  for (auto& [id, seen] : ranks_)
    seen.emplace_back();
  for (const auto& row : rows) {
    auto& seen = ranks_[row.rank];
    if (seen.empty())
      seen.emplace_back();
    seen.back() = sample{row.state, row.requests, row.reported_waiting, static_cast<float>(row.kv_share())};
  }
  for (auto& [id, seen] : ranks_)
    if (seen.size() > samples_max)
      seen.pop_front();
  std::erase_if(ranks_, [](const auto& rank) {
    return std::none_of(rank.second.begin(), rank.second.end(), [](const auto& s) { return s.has_value(); });
  });
}

std::map<rank_id, load_history::series> load_history::all() const {
  const std::lock_guard guard{mutex_};
  return ranks_;
}

} // namespace rankwise::core
