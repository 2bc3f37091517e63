#pragma once

#include "core/base/time.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rankwise::io {

/// Requests that an engine runs for an earlier process of this node: each is told to be aborted when it shows up, and
/// again when it still shows up long after that.
class foreign_requests {
 public:
  /// How long an abort may take before it is sent again.
  static constexpr core::duration patience = std::chrono::seconds{1};

  /// True: it has to be aborted now. At `requests_max` those of which nothing was heard for `patience` are forgotten.
  bool heard(std::string_view rid, core::timestamp now, std::size_t requests_max) {
    const auto found = asked_.find(std::string{rid});
    if (found != asked_.end()) {
      if (now - found->second < patience)
        return false;
      found->second = now;
      return true;
    }
    if (asked_.size() >= requests_max)
      std::erase_if(asked_, [&](const auto& entry) { return now - entry.second >= patience; });
    if (asked_.size() >= requests_max)
      return false; // its next output asks again
    asked_.emplace(rid, now);
    return true;
  }
  void ended(std::string_view rid) { asked_.erase(std::string{rid}); }
  /// The aborts did not go out.
  void forget(const std::vector<std::string>& rids) {
    for (const auto& rid : rids)
      asked_.erase(rid);
  }
  [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }

 private:
  std::unordered_map<std::string, core::timestamp> asked_;
};

} // namespace rankwise::io
