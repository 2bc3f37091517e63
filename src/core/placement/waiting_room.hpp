#pragma once

#include "core/base/time.hpp"
#include "core/placement/orders.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rankwise::core {

/// By what those who wait for a place are put in order.
struct waiting_key {
  std::optional<double> work_s; ///< the policy's estimate of the order's own work; none = in order of arrival
  std::int32_t priority = 0;    ///< its class; a higher one goes first
  /// When to begin at the latest for the client's deadline; none = no deadline, or one that cannot be kept anyway.
  std::optional<timestamp> latest_start;
  timestamp too_late{}; ///< from when on the deadline cannot be kept; means something with `latest_start` only
};

/// When one of those who wait goes before all others, whatever their class and work, so that nobody is passed for ever.
struct waiting_order_options {
  duration patience = std::chrono::milliseconds{500};
  double patience_per_work = 1;    ///< seconds more for each second of its own work
  double patience_per_queue = 1.3; ///< and of the time in which the ranks would work off all that wait before it
  /// That share of the orders, the largest, waits `largest_factor` times as long: nobody delays others so much, and
  /// nobody notices a delay of its own so little. 0 = nobody.
  double largest_share = 0.008;
  double largest_factor = 100;
  /// Of anyone, as is the room's own time: whoever waited so long leaves, and is given a rank as things are.
  duration patience_max = std::chrono::seconds{600};
  /// So many times as long for each class between an order and the highest that waits when it comes.
  double patience_per_class = 4;
  /// A deadline counts from so long before the last moment to begin for it.
  duration deadline_lead = std::chrono::seconds{10};
};

/// Orders that a pool cannot place yet: for want of room, or because every rank has enough to do. Bounded in number and
/// in time. Next is one whose patience is over, the first of those; else one of the highest class: of those whose
/// deadline is near and can be kept, or else of all, the one with the least work, or that came first where work is not
/// known. (The earliest deadline first would spend the ranks on those that are about to miss it: with more than the
/// ranks can do, most then miss theirs.)
class waiting_room {
 public:
  waiting_room(std::size_t orders_max, duration time_max, waiting_order_options order = {})
      : orders_max_(orders_max), time_max_(time_max), wait_max_(std::min(time_max, order.patience_max)), order_(order) {
  }

  /// False: it is full, the order is untouched. `ranks`: how many share the work.
  [[nodiscard]] bool enter(place_order& order, timestamp now, const waiting_key& by = {}, std::size_t ranks = 1) {
    if (orders_.size() >= orders_max_ || by_handle_.contains(order.handle))
      return false;
    squeeze_in(order, now, by, ranks);
    return true;
  }
  /// Although it is full: somebody has to leave at once. The order's handle does not wait yet.
  void squeeze_in(place_order& order, timestamp now, const waiting_key& by, std::size_t ranks) {
    const auto handle = order.handle;
    const auto number = ++entered_;
    waiting w;
    w.until = now + wait_max_;
    w.by = by;
    w.number = number;
    w.due = now + patience_of(by, ranks);
    w.order = std::move(order);
    orders_.push_back(std::move(w));
    const auto entry = std::prev(orders_.end());
    by_handle_.emplace(handle, entry);
    by_due_.emplace(std::pair{entry->due, number}, entry);
    auto& c = classes_[by.priority];
    c.by_work.emplace(entry->by_work(), entry);
    c.work_s += by.work_s.value_or(0);
    if (by.latest_start)
      c.by_start.emplace(std::pair{*by.latest_start, number}, entry);
  }
  /// When it is full, takes out the last of the lowest class that waits, if that is below `priority`; not one whose
  /// patience is over.
  [[nodiscard]] std::optional<place_order> make_room_for(std::int32_t priority, timestamp now) {
    if (orders_.size() < orders_max_)
      return std::nullopt;
    for (auto c = classes_.rbegin(); c != classes_.rend() && c->first < priority; ++c)
      for (auto last = c->second.by_work.rbegin(); last != c->second.by_work.rend(); ++last)
        if (last->second->due > now)
          return take_out(last->second);
    return std::nullopt;
  }
  [[nodiscard]] bool contains(request_handle handle) const { return by_handle_.contains(handle); }
  /// The one whose turn it is; nullptr: nobody waits. Valid until the next call.
  [[nodiscard]] place_order* next(timestamp now = {}) {
    const auto entry = turn(now);
    return entry == orders_.end() ? nullptr : &entry->order;
  }
  /// Takes that one out.
  [[nodiscard]] place_order take(timestamp now = {}) { return take_out(turn(now)); }
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
    while (!orders_.empty() && orders_.front().until <= now)
      result.push_back(take_out(orders_.begin()));
    return result;
  }
  /// All orders of an owner leave; their handles, in order of arrival.
  std::vector<request_handle> leave_all_of(owner_id owner) {
    std::vector<request_handle> result;
    for (const auto& w : orders_)
      if (owner_of(w.order.handle) == owner)
        result.push_back(w.order.handle);
    for (const auto handle : result)
      leave(handle);
    return result;
  }
  [[nodiscard]] std::size_t size() const noexcept { return orders_.size(); }

 private:
  struct waiting {
    place_order order;
    timestamp until;
    timestamp due;
    waiting_key by;
    std::uint64_t number = 0;

    [[nodiscard]] std::pair<double, std::uint64_t> by_work() const noexcept { return {by.work_s.value_or(0), number}; }
  };
  using entries = std::list<waiting>; // in order of arrival, which is that of `until`
  using iterator = entries::iterator;
  struct by_first {
    template <class T>
    bool operator()(const std::pair<T, iterator>& a, const std::pair<T, iterator>& b) const {
      return a.first < b.first;
    }
  };
  template <class T>
  using ordered_by = std::set<std::pair<std::pair<T, std::uint64_t>, iterator>, by_first>;
  struct priority_class {
    ordered_by<double> by_work;
    double work_s = 0;                 // of all
    ordered_by<timestamp> by_start;    // of those whose deadline is far
    ordered_by<timestamp> by_too_late; // of those whose deadline is near
    ordered_by<double> urgent_by_work; // of the same
  };

  static void no_longer_urgent(priority_class& c, iterator entry) {
    c.by_too_late.erase({std::pair{entry->by.too_late, entry->number}, entry});
    c.urgent_by_work.erase({entry->by_work(), entry});
  }
  void look_at_deadlines(priority_class& c, timestamp now) const {
    while (!c.by_start.empty() && c.by_start.begin()->first.first <= now + order_.deadline_lead) {
      const auto entry = c.by_start.begin()->second;
      c.by_start.erase(c.by_start.begin());
      c.by_too_late.emplace(std::pair{entry->by.too_late, entry->number}, entry);
      c.urgent_by_work.emplace(entry->by_work(), entry);
    }
    while (!c.by_too_late.empty() && c.by_too_late.begin()->first.first <= now)
      no_longer_urgent(c, c.by_too_late.begin()->second);
  }

  [[nodiscard]] iterator turn(timestamp now) {
    if (orders_.empty())
      return orders_.end();
    if (by_due_.begin()->first.first <= now)
      return by_due_.begin()->second;
    auto& first = classes_.begin()->second;
    look_at_deadlines(first, now);
    return (first.urgent_by_work.empty() ? first.by_work : first.urgent_by_work).begin()->second;
  }
  [[nodiscard]] duration patience_of(const waiting_key& by, std::size_t ranks) {
    double s =
        to_seconds(time_max_) / 2; // without work nobody passes it in its class, and classes alternate in the end
    if (by.work_s) {
      double before_s = 0;
      for (const auto& [priority, c] : classes_)
        if (priority >= by.priority)
          before_s += c.work_s;
      s = to_seconds(order_.patience) + order_.patience_per_work * *by.work_s +
          order_.patience_per_queue * before_s / static_cast<double>(std::max<std::size_t>(ranks, 1));
      if (is_largest(*by.work_s))
        s *= order_.largest_factor;
    }
    if (!classes_.empty() && classes_.begin()->first > by.priority)
      s *= std::pow(order_.patience_per_class, std::int64_t{classes_.begin()->first} - by.priority);
    return std::min(from_seconds(std::clamp(s, 0.0, to_seconds(wait_max_))), wait_max_);
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
  [[nodiscard]] place_order take_out(iterator entry) {
    auto order = std::move(entry->order);
    erase(entry, order.handle);
    return order;
  }
  void erase(iterator entry, request_handle handle) {
    by_handle_.erase(handle);
    by_due_.erase({std::pair{entry->due, entry->number}, entry});
    const auto found = classes_.find(entry->by.priority);
    auto& c = found->second;
    c.by_work.erase({entry->by_work(), entry});
    if (entry->by.latest_start) {
      c.by_start.erase({std::pair{*entry->by.latest_start, entry->number}, entry});
      no_longer_urgent(c, entry);
    }
    c.work_s -= entry->by.work_s.value_or(0);
    if (c.by_work.empty())
      classes_.erase(found); // with what rounding left of its work
    orders_.erase(entry);
  }

  std::size_t orders_max_;
  duration time_max_;
  duration wait_max_; // of anyone
  waiting_order_options order_;
  std::uint64_t entered_ = 0;
  double largest_ = 1; // work in seconds that `largest_share` of the orders exceed
  entries orders_;
  std::unordered_map<request_handle, iterator> by_handle_;
  ordered_by<timestamp> by_due_;
  std::map<std::int32_t, priority_class, std::greater<>> classes_; // those with orders, the highest first
};

} // namespace rankwise::core
