#pragma once

#include "core/placement.hpp"
#include "core/time.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rankwise::core {

/// When one of those who wait goes before all that have a lower key, so that nobody is passed for ever. A key is the
/// policy's estimate of the order's own work in seconds.
struct waiting_order_options {
  duration patience = std::chrono::milliseconds{500};
  double patience_per_work = 1;    ///< seconds more for each second of its own work
  double patience_per_queue = 1.3; ///< and of the time in which the ranks would work off all that wait before it
  /// That share of the orders, the largest, waits `largest_factor` times as long: nobody delays others so much, and
  /// nobody notices a delay of its own so little. 0 = nobody.
  double largest_share = 0.008;
  double largest_factor = 100;
  duration patience_max = std::chrono::seconds{600}; ///< of anyone
};

/// Orders that a pool cannot place yet: for want of room, or because every rank has enough to do. Bounded in number and
/// in time. First come, first served, unless they come with a key: then the lowest is next, but one whose patience is
/// over is next before all of those.
class waiting_room {
 public:
  waiting_room(std::size_t orders_max, duration time_max, waiting_order_options order = {})
      : orders_max_(orders_max), time_max_(time_max), order_(order) {}

  /// False: it is full, the order is untouched. `by`: its key; nullopt: in order of arrival. `ranks`: how many share
  /// the work.
  [[nodiscard]] bool enter(place_order& order, timestamp now, std::optional<double> by = std::nullopt,
                           std::size_t ranks = 1) {
    if (orders_.size() >= orders_max_ || by_handle_.contains(order.handle))
      return false;
    const auto handle = order.handle;
    const auto number = ++entered_;
    waiting w;
    w.until = now + time_max_;
    w.key = {by.value_or(0), number};
    w.due = now;
    if (by) {
      double s = to_seconds(order_.patience) + order_.patience_per_work * *by +
                 order_.patience_per_queue * queued_ / static_cast<double>(std::max<std::size_t>(ranks, 1));
      if (is_largest(*by))
        s *= order_.largest_factor;
      w.due += duration{static_cast<duration::rep>(std::clamp(s, 0.0, to_seconds(order_.patience_max)) * 1e9)};
      queued_ += *by;
    }
    w.due = std::min(w.due, w.until);
    w.order = std::move(order);
    orders_.push_back(std::move(w));
    const auto entry = std::prev(orders_.end());
    by_handle_.emplace(handle, entry);
    by_key_.emplace(entry->key, entry);
    by_due_.emplace(std::pair{entry->due, number}, entry);
    return true;
  }
  /// The one whose turn it is; nullptr: nobody waits. Valid until the next call.
  [[nodiscard]] place_order* next(timestamp now = {}) {
    const auto entry = turn(now);
    return entry == orders_.end() ? nullptr : &entry->order;
  }
  /// Takes that one out.
  [[nodiscard]] place_order take(timestamp now = {}) {
    const auto entry = turn(now);
    auto order = std::move(entry->order);
    erase(entry, order.handle);
    return order;
  }
  /// False: it does not wait.
  bool leave(request_handle handle) {
    const auto found = by_handle_.find(handle);
    if (found == by_handle_.end())
      return false;
    erase(found->second, handle);
    return true;
  }
  /// Those whose time is over, which leave.
  [[nodiscard]] std::vector<place_order> expired(timestamp now) {
    std::vector<place_order> result;
    while (!orders_.empty() && orders_.front().until <= now) {
      result.push_back(std::move(orders_.front().order));
      erase(orders_.begin(), result.back().handle);
    }
    return result;
  }
  void clear() {
    orders_.clear();
    queued_ = 0;
    by_handle_.clear();
    by_key_.clear();
    by_due_.clear();
  }
  [[nodiscard]] std::size_t size() const noexcept { return orders_.size(); }

 private:
  using key_type = std::pair<double, std::uint64_t>;
  struct waiting {
    place_order order;
    timestamp until;
    timestamp due;
    key_type key;
  };
  using entries = std::list<waiting>; // in order of arrival, which is that of `until`
  using iterator = entries::iterator;
  struct by_first {
    template <class T>
    bool operator()(const std::pair<T, iterator>& a, const std::pair<T, iterator>& b) const {
      return a.first < b.first;
    }
  };

  [[nodiscard]] iterator turn(timestamp now) {
    if (by_key_.empty())
      return orders_.end();
    if (by_due_.begin()->first.first <= now)
      return by_due_.begin()->second;
    return by_key_.begin()->second;
  }
  /// Follows the quantile of all keys by steps, up when passed and down otherwise (stochastic approximation).
  [[nodiscard]] bool is_largest(double key) {
    if (order_.largest_share <= 0)
      return false;
    const double step = 0.02 * std::max(largest_, 1e-3);
    const bool above = key > largest_;
    largest_ = std::max(largest_ + step * (above ? 1 - order_.largest_share : -order_.largest_share), 0.0);
    return above;
  }
  void erase(iterator entry, request_handle handle) {
    queued_ = orders_.size() == 1 ? 0 : queued_ - entry->key.first;
    by_handle_.erase(handle);
    by_key_.erase({entry->key, entry});
    by_due_.erase({std::pair{entry->due, entry->key.second}, entry});
    orders_.erase(entry);
  }

  std::size_t orders_max_;
  duration time_max_;
  waiting_order_options order_;
  std::uint64_t entered_ = 0;
  double queued_ = 0;  // sum of keys
  double largest_ = 1; // key that `largest_share` of the orders exceed
  entries orders_;
  std::unordered_map<request_handle, iterator> by_handle_;
  std::set<std::pair<key_type, iterator>, by_first> by_key_;
  std::set<std::pair<std::pair<timestamp, std::uint64_t>, iterator>, by_first> by_due_;
};

} // namespace rankwise::core
