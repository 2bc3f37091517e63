#pragma once

#include "core/base/ids.hpp"
#include "core/placement/orders.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace rankwise::core {

/// Legs that their owners have placed on ranks which a restarted controller has not heard of yet: a rank whose actor is
/// being restarted too announces itself later, and its engine runs them all the while. Kept until then, so that the
/// ledger gets them back, and so that one which ends meanwhile does not come back.
class unrestored_legs {
 public:
  void keep(const leg_record& leg) { legs_.insert_or_assign(leg.handle, leg); }

  /// The leg is over. False: it is not kept here.
  bool end(request_handle handle) { return legs_.erase(handle) != 0; }
  void first_token(request_handle handle) {
    if (const auto found = legs_.find(handle); found != legs_.end())
      found->second.prefilled = true;
  }
  void release(request_handle handle) {
    if (const auto found = legs_.find(handle); found != legs_.end())
      found->second.released = true;
  }
  void owner_gone(owner_id owner) {
    std::erase_if(legs_, [=](const auto& entry) { return owner_of(entry.first) == owner; });
  }

  /// Takes out what is on the rank under `epoch` or an earlier one; returns what is under `epoch`.
  [[nodiscard]] std::vector<leg_record> take(rank_id rank, rank_epoch epoch) {
    std::vector<leg_record> result;
    std::erase_if(legs_, [&](const auto& entry) {
      const auto& leg = entry.second;
      if (leg.rank != rank || leg.epoch > epoch)
        return false;
      if (leg.epoch == epoch)
        result.push_back(leg);
      return true;
    });
    return result;
  }

  /// In the order of their handles.
  [[nodiscard]] std::vector<leg_id> legs() const {
    std::vector<leg_id> result;
    for (const auto& [handle, leg] : legs_)
      result.push_back({handle, leg.attempt});
    return result;
  }

 private:
  std::map<request_handle, leg_record> legs_;
};

} // namespace rankwise::core
