#pragma once

#include "core/base/ids.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rankwise::core {

/// What the engine of one rank runs for whom: every leg that was sent to it and not ended since, with the rid under
/// which the engine knows it. By this book an abort reaches an engine at most once, and only while the leg runs there;
/// and what an owner that is gone had on the rank can still be aborted. Kept apart from the rank's actor, which may
/// crash.
class outstanding_legs {
 public:
  /// A leg is about to be sent to the engine. False: it was sent before and runs.
  bool add(leg_id leg, std::string engine_rid) { return legs_.try_emplace(leg, std::move(engine_rid)).second; }

  /// The engine ended the leg by itself, or it could not be sent after all. Unknown legs are no error.
  void forget(leg_id leg) { legs_.erase(leg); }

  /// The leg's owner gave it up: its engine rid, to be aborted. nullopt: the engine does not run it (any more).
  [[nodiscard]] std::optional<std::string> take(leg_id leg) {
    auto node = legs_.extract(leg);
    return node.empty() ? std::nullopt : std::optional{std::move(node.mapped())};
  }

  /// The same for all legs of an owner that is gone, in the order of their handles.
  [[nodiscard]] std::vector<std::string> take_all_of(owner_id owner) {
    return take_if([=](const leg_id& leg) { return owner_of(leg.handle) == owner; });
  }
  /// The same for all legs: the rank's link is lost, or the rank is to be empty.
  [[nodiscard]] std::vector<std::string> take_all() {
    return take_if([](const leg_id&) { return true; });
  }
  /// A new engine process runs nothing of what the one before ran.
  void clear() { legs_.clear(); }

  struct difference {
    std::vector<std::string> unwanted; ///< engine rids of legs that the owner does not have here; they are taken out
    std::vector<leg_id> never_sent;    ///< legs that the owner believes to be here and that were not sent
  };
  /// Compares the book with all the legs that `owner` says it has on this rank: messages between the two may have been
  /// lost with the rank's actor.
  [[nodiscard]] difference compare(owner_id owner, std::span<const leg_id> legs) {
    difference result;
    std::vector<leg_id> sorted{legs.begin(), legs.end()};
    std::sort(sorted.begin(), sorted.end());
    for (const auto& leg : sorted)
      if (!legs_.contains(leg))
        result.never_sent.push_back(leg);
    result.unwanted = take_if([&](const leg_id& leg) {
      return owner_of(leg.handle) == owner && !std::binary_search(sorted.begin(), sorted.end(), leg);
    });
    return result;
  }

  [[nodiscard]] std::size_t size() const noexcept { return legs_.size(); }
  /// In the order of their handles.
  [[nodiscard]] std::vector<leg_id> legs() const {
    std::vector<leg_id> result;
    result.reserve(legs_.size());
    for (const auto& [leg, rid] : legs_)
      result.push_back(leg);
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  struct hash {
    std::size_t operator()(const leg_id& leg) const noexcept {
      return std::hash<request_handle>{}(leg.handle ^ (request_handle{leg.attempt} << 40));
    }
  };

  template <class Predicate>
  std::vector<std::string> take_if(Predicate wanted) {
    std::vector<leg_id> found;
    for (const auto& [leg, rid] : legs_)
      if (wanted(leg))
        found.push_back(leg);
    std::sort(found.begin(), found.end()); // the order of a hash map must not decide the order of aborts
    std::vector<std::string> rids;
    rids.reserve(found.size());
    for (const auto& leg : found)
      rids.push_back(std::move(legs_.extract(leg).mapped()));
    return rids;
  }

  std::unordered_map<leg_id, std::string, hash> legs_;
};

} // namespace rankwise::core
