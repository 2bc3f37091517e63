#pragma once

#include "core/placement.hpp"
#include "core/time.hpp"

#include <cstddef>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rankwise::core {

/// Orders for which a pool has no room yet, first come, first served. Bounded in number and in time.
class waiting_room {
 public:
  waiting_room(std::size_t orders_max, duration time_max) : orders_max_(orders_max), time_max_(time_max) {}

  /// False: it is full, the order is untouched.
  [[nodiscard]] bool enter(place_order& order, timestamp now) {
    if (orders_.size() >= orders_max_ || by_handle_.contains(order.handle))
      return false;
    const auto handle = order.handle;
    orders_.push_back({std::move(order), now + time_max_});
    by_handle_.emplace(handle, std::prev(orders_.end()));
    return true;
  }
  /// The one whose turn it is; nullptr: nobody waits. Valid until the next call.
  [[nodiscard]] const place_order* next() const { return orders_.empty() ? nullptr : &orders_.front().order; }
  /// Takes that one out.
  [[nodiscard]] place_order take() {
    auto order = std::move(orders_.front().order);
    by_handle_.erase(order.handle);
    orders_.pop_front();
    return order;
  }
  /// False: it does not wait.
  bool leave(request_handle handle) {
    const auto found = by_handle_.find(handle);
    if (found == by_handle_.end())
      return false;
    orders_.erase(found->second);
    by_handle_.erase(found);
    return true;
  }
  /// Those whose time is over, which leave.
  [[nodiscard]] std::vector<place_order> expired(timestamp now) {
    std::vector<place_order> result;
    while (!orders_.empty() && orders_.front().until <= now) {
      by_handle_.erase(orders_.front().order.handle);
      result.push_back(std::move(orders_.front().order));
      orders_.pop_front();
    }
    return result;
  }
  void clear() {
    orders_.clear();
    by_handle_.clear();
  }
  [[nodiscard]] std::size_t size() const noexcept { return orders_.size(); }

 private:
  struct waiting {
    place_order order;
    timestamp until;
  };
  std::size_t orders_max_;
  duration time_max_;
  std::list<waiting> orders_;
  std::unordered_map<request_handle, std::list<waiting>::iterator> by_handle_;
};

} // namespace rankwise::core
