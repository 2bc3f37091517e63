#pragma once

#include "core/base/time.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rankwise::io {

/// The requests that one engine still runs for an earlier process of this node. Says of each when the engine has to be
/// told to abort it: when it shows up, and again when it still shows up long after that. Receiver thread.
class foreign_requests {
 public:
  /// How long an abort may take before it is sent again.
  static constexpr core::duration patience = std::chrono::seconds{1};

  /// An output of such a request came. True when the engine has to be told now to abort it. When `requests_max` of them
  /// are remembered, those that were last aborted longer than `patience` ago are forgotten.
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
  /// The engine ended such a request.
  void ended(std::string_view rid) { asked_.erase(std::string{rid}); }
  /// The aborts of these requests could not be sent: their next outputs ask for them again.
  void forget(const std::vector<std::string>& rids) {
    for (const auto& rid : rids)
      asked_.erase(rid);
  }
  [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }

 private:
  std::unordered_map<std::string, core::timestamp> asked_; // when the abort of a rid was last asked for
};

} // namespace rankwise::io
