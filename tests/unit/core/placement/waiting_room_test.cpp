#include "core/placement/waiting_room.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

/// Orders that wait by key; without keys see pool_controller_test.cpp.
namespace rankwise::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

place_order order(request_handle handle) {
  place_order o;
  o.handle = handle;
  return o;
}

bool enter(waiting_room& room, request_handle handle, timestamp now, std::optional<double> by, std::size_t ranks = 1) {
  auto o = order(handle);
  return room.enter(o, now, {by, 0, {}, {}}, ranks);
}

std::vector<request_handle> drain(waiting_room& room, timestamp now) {
  std::vector<request_handle> result;
  while (room.next(now) != nullptr)
    result.push_back(room.take(now).handle);
  return result;
}

timestamp at(int ms) {
  return timestamp{} + seconds{100} + milliseconds{ms};
}

constexpr waiting_order_options half_a_second{milliseconds{500}, 0, 0, 0, 1, seconds{120}};

TEST(waiting_room_with_keys, the_lowest_is_next_and_equals_come_in_order_of_arrival) {
  waiting_room room{10, seconds{10}};
  for (const auto& [handle, key] : {std::pair{1, 3.0}, {2, 1.0}, {3, 2.0}, {4, 1.0}})
    EXPECT_TRUE(enter(room, static_cast<request_handle>(handle), at(0), key));
  EXPECT_EQ(room.next(at(1))->handle, 2u);
  EXPECT_THAT(drain(room, at(1)), ElementsAre(2, 4, 3, 1));
  EXPECT_EQ(room.size(), 0u);
}

TEST(waiting_room_with_keys, one_whose_patience_is_over_is_next_before_all_with_a_lower_key) {
  waiting_room room{10, seconds{10}, half_a_second};
  EXPECT_TRUE(enter(room, 1, at(0), 9));
  EXPECT_TRUE(enter(room, 2, at(100), 5));
  EXPECT_TRUE(enter(room, 3, at(400), 1));
  EXPECT_EQ(room.next(at(499))->handle, 3u);
  EXPECT_EQ(room.next(at(500))->handle, 1u);
  EXPECT_THAT(drain(room, at(600)), ElementsAre(1, 2, 3));
}

TEST(waiting_room_with_keys, patience_is_longer_by_ones_own_work_and_by_what_waits_before_it) {
  waiting_order_options o = half_a_second;
  o.patience_per_work = 2;
  o.patience_per_queue = 1;
  waiting_room room{10, seconds{60}, o};
  EXPECT_TRUE(enter(room, 1, at(0), 4, 2)); // 0.5 + 2 x 4 = 8.5 s
  EXPECT_TRUE(enter(room, 2, at(0), 1, 2)); // 0.5 + 2 x 1 + 4 / 2 = 4.5 s
  EXPECT_TRUE(enter(room, 3, at(0), 0, 2)); // 0.5 + (4 + 1) / 2 = 3 s: the lowest key
  EXPECT_TRUE(room.leave(3));
  EXPECT_TRUE(enter(room, 4, at(8000), 0, 2));
  EXPECT_EQ(room.next(at(4499))->handle, 4u);
  EXPECT_EQ(room.next(at(4500))->handle, 2u);
  EXPECT_TRUE(room.leave(2));
  EXPECT_EQ(room.next(at(8499))->handle, 4u);
  EXPECT_EQ(room.next(at(8500))->handle, 1u);
}

TEST(waiting_room_with_keys, nobodys_patience_is_longer_than_its_bound_or_its_time) {
  waiting_order_options o = half_a_second;
  o.patience_per_work = 1;
  o.patience_max = seconds{3};
  waiting_room room{10, seconds{60}, o};
  EXPECT_TRUE(enter(room, 1, at(0), 1000));
  EXPECT_TRUE(enter(room, 2, at(0), 0.1));
  EXPECT_TRUE(room.leave(2));
  EXPECT_TRUE(enter(room, 3, at(2900), 0.1));
  EXPECT_EQ(room.next(at(2999))->handle, 3u);
  EXPECT_EQ(room.next(at(3000))->handle, 1u);
  waiting_room brief{10, seconds{1}, o};
  EXPECT_TRUE(enter(brief, 1, at(0), 1000));
  EXPECT_TRUE(enter(brief, 2, at(900), 0.1));
  EXPECT_EQ(brief.next(at(999))->handle, 2u);
  EXPECT_EQ(brief.next(at(1000))->handle, 1u);
}

TEST(waiting_room_with_keys, the_largest_share_of_them_waits_longer) {
  waiting_order_options o{seconds{1}, 0, 0, 0.1, 10, seconds{120}};
  constexpr std::size_t count = 4000;
  waiting_room room{count, seconds{60}, o};
  std::mt19937_64 random{1};
  std::vector<double> keys(count + 1);
  for (request_handle h = 1; h <= count; ++h) {
    keys[h] = static_cast<double>(random() % 1000) / 1000;
    EXPECT_TRUE(enter(room, h, at(0), keys[h]));
  }
  // Those whose patience is over come in order of arrival, the others by key.
  const auto taken = drain(room, at(1500));
  ASSERT_EQ(taken.size(), count);
  const auto others = std::is_sorted_until(taken.begin(), taken.end());
  const auto largest = static_cast<double>(taken.end() - others) / count;
  EXPECT_NEAR(largest, 0.1, 0.03);
  for (auto i = others; i != taken.end(); ++i)
    if (*i > count / 4) { // it finds the size first
      EXPECT_GT(keys[*i], 0.75) << *i;
    }
}

TEST(waiting_room_with_keys, it_is_bounded_and_takes_nobody_twice) {
  waiting_room room{2, seconds{1}};
  EXPECT_TRUE(enter(room, 1, at(0), 1));
  EXPECT_FALSE(enter(room, 1, at(0), 2)) << "it waits already";
  EXPECT_TRUE(enter(room, 2, at(0), 2));
  EXPECT_FALSE(enter(room, 3, at(0), 0.5));
  EXPECT_EQ(room.size(), 2u);
  EXPECT_TRUE(room.leave(1));
  EXPECT_TRUE(enter(room, 3, at(0), 0.5));
  EXPECT_THAT(drain(room, at(0)), ElementsAre(3, 2));
  waiting_room none{0, seconds{1}};
  EXPECT_FALSE(enter(none, 1, at(0), 1));
  EXPECT_EQ(none.next(at(0)), nullptr);
}

bool enter(waiting_room& room, request_handle handle, timestamp now, const waiting_key& by) {
  auto o = order(handle);
  return room.enter(o, now, by);
}

TEST(waiting_room_with_classes, a_higher_class_goes_first_and_work_orders_within_a_class) {
  waiting_room room{10, seconds{10}};
  EXPECT_TRUE(enter(room, 1, at(0), {1.0, 0, {}, {}}));
  EXPECT_TRUE(enter(room, 2, at(0), {9.0, 2, {}, {}}));
  EXPECT_TRUE(enter(room, 3, at(0), {5.0, 2, {}, {}}));
  EXPECT_TRUE(enter(room, 4, at(0), {0.1, -1, {}, {}}));
  EXPECT_THAT(drain(room, at(1)), ElementsAre(3, 2, 1, 4));
}

TEST(waiting_room_with_classes, in_a_full_room_the_last_of_the_lowest_class_makes_room_for_a_higher_one_only) {
  waiting_room room{4, seconds{10}};
  const auto comes = [&](request_handle handle, std::int32_t priority, double work) {
    auto o = order(handle);
    return room.enter(o, at(0), {work, priority, {}, {}});
  };
  EXPECT_TRUE(comes(1, 0, 1) && comes(2, -1, 3) && comes(3, -1, 1));
  EXPECT_FALSE(room.make_room_for(8, at(0))) << "there is room";
  EXPECT_TRUE(comes(4, -1, 2));
  EXPECT_FALSE(room.make_room_for(-1, at(0))) << "its own class";
  EXPECT_FALSE(room.make_room_for(-8, at(0)));
  const auto out = room.make_room_for(0, at(0));
  ASSERT_TRUE(out);
  EXPECT_EQ(out->handle, 2U) << "the one that was to go last";
  EXPECT_TRUE(comes(5, 0, 0.5));
  EXPECT_THAT(drain(room, at(1)), ElementsAre(5, 1, 3, 4));
  EXPECT_FALSE(room.make_room_for(1, at(0))) << "nobody waits";
  waiting_room none{0, seconds{10}};
  EXPECT_FALSE(none.make_room_for(1, at(0)));
}

TEST(waiting_room_with_classes, who_waited_as_long_as_it_has_to_gives_its_place_to_nobody) {
  waiting_room room{3, seconds{60}, half_a_second};
  EXPECT_TRUE(enter(room, 1, at(0), {9.0, -2, {}, {}}));
  EXPECT_TRUE(enter(room, 2, at(40'000), {1.0, -2, {}, {}}));
  EXPECT_TRUE(enter(room, 3, at(40'000), {1.0, -1, {}, {}}));
  EXPECT_EQ(room.make_room_for(0, at(40'000))->handle, 2u) << "the first is next";
  EXPECT_TRUE(enter(room, 4, at(40'000), {1.0, 0, {}, {}}));
  EXPECT_EQ(room.make_room_for(0, at(40'000))->handle, 3u) << "nor does its class protect another one";
  EXPECT_TRUE(enter(room, 5, at(40'000), {1.0, 0, {}, {}}));
  EXPECT_FALSE(room.make_room_for(0, at(40'000)));
  EXPECT_TRUE(room.contains(1) && !room.contains(2));
}

TEST(waiting_room_with_classes, a_deadline_that_is_near_and_can_be_kept_goes_first_in_its_class_only) {
  waiting_order_options o;
  o.patience = seconds{9};
  o.deadline_lead = milliseconds{100};
  waiting_room room{10, seconds{10}, o};
  EXPECT_TRUE(enter(room, 1, at(0), {5.0, 0, at(300), at(900)}));
  EXPECT_TRUE(enter(room, 2, at(0), {4.0, 0, at(400), at(500)}));
  EXPECT_TRUE(enter(room, 3, at(0), {1.0, 0, {}, {}}));
  EXPECT_TRUE(enter(room, 4, at(0), {8.0, 1, {}, {}}));
  EXPECT_TRUE(enter(room, 5, at(0), {7.0, -1, at(0), at(9000)}));
  EXPECT_EQ(room.next(at(400))->handle, 4u) << "a deadline moves nobody into another class";
  EXPECT_TRUE(room.leave(4));
  EXPECT_EQ(room.next(at(199))->handle, 3u) << "there is time";
  EXPECT_EQ(room.next(at(200))->handle, 1u);
  EXPECT_EQ(room.next(at(300))->handle, 2u) << "less work, and as near";
  EXPECT_EQ(room.next(at(500))->handle, 1u) << "the other one is too late";
  EXPECT_THAT(drain(room, at(900)), ElementsAre(3, 2, 1, 5));
}

TEST(waiting_room_with_classes, a_stream_of_a_higher_class_passes_a_lower_one_for_a_bounded_time_only) {
  for (const bool work_known : {true, false}) {
    waiting_order_options o = half_a_second; // x 4 x 4 for two classes
    waiting_room room{1000, seconds{work_known ? 60 : 4}, o};
    EXPECT_TRUE(enter(room, 1, at(0), {1.0, 2, {}, {}}));
    EXPECT_TRUE(enter(room, 2, at(0), {work_known ? std::optional{0.1} : std::nullopt, 0, {}, {}}));
    request_handle h = 2;
    int passed_ms = 0;
    while (room.next(at(passed_ms))->handle != 2) {
      ASSERT_TRUE(room.leave(room.next(at(passed_ms))->handle));
      passed_ms += 100;
      ASSERT_LE(passed_ms, 60'000);
      EXPECT_TRUE(enter(room, ++h, at(passed_ms), {0.1, 2, {}, {}}));
    }
    EXPECT_EQ(passed_ms, work_known ? 8'000 : 4'000) << "0.5 s x 16, but nobody longer than the room's time";
  }
}

TEST(waiting_room_with_classes, patience_counts_the_work_of_its_own_and_higher_classes) {
  waiting_order_options o = half_a_second;
  o.patience_per_queue = 1;
  o.patience_per_work = 1;
  waiting_room room{10, seconds{60}, o};
  EXPECT_TRUE(enter(room, 1, at(0), {50.0, -1, {}, {}}));
  EXPECT_TRUE(enter(room, 2, at(0), {2.0, 0, {}, {}})); // 2.5 s
  EXPECT_TRUE(enter(room, 3, at(0), {1.0, 0, {}, {}})); // 1.5 + 2 s
  EXPECT_TRUE(room.leave(2));
  EXPECT_TRUE(enter(room, 4, at(3000), {0.5, 1, {}, {}}));
  EXPECT_EQ(room.next(at(3499))->handle, 4u);
  EXPECT_EQ(room.next(at(3500))->handle, 3u);
}

/// The same rules over a plain list.
struct plain_room {
  struct entry {
    request_handle handle;
    double key;
    timestamp until;
    timestamp due;
  };
  std::vector<entry> entries; // in order of arrival

  void enter(request_handle handle, double key, timestamp now, std::size_t ranks) {
    double queued = 0;
    for (const auto& e : entries)
      queued += e.key;
    const double s = 0.5 + key + queued / static_cast<double>(ranks);
    const auto due = now + duration{static_cast<duration::rep>(std::min(s, 10.0) * 1e9)};
    entries.push_back({handle, key, now + seconds{6}, std::min(due, now + seconds{6})});
  }
  [[nodiscard]] std::vector<entry>::iterator turn(timestamp now) {
    const auto first =
        std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.due < b.due; });
    if (first == entries.end() || first->due <= now)
      return first;
    return std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  }
};

TEST(waiting_room_with_keys, agrees_with_a_plain_list_whatever_enters_leaves_or_expires) {
  const waiting_order_options o{milliseconds{500}, 1, 1, 0, 1, seconds{10}};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random{seed};
    waiting_room room{30, seconds{6}, o};
    plain_room plain;
    auto now = at(0);
    request_handle last = 0;
    for (int i = 0; i < 2000; ++i) {
      now += milliseconds{random() % 100};
      switch (random() % 8) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const double key = static_cast<double>(random() % 200) / 64; // sums of these are exact
        const std::size_t ranks = 1U << random() % 3;
        ASSERT_EQ(enter(room, ++last, now, key, ranks), plain.entries.size() < 30);
        if (plain.entries.size() < 30)
          plain.enter(last, key, now, ranks);
        break;
      }
      case 4: {
        const auto handle = last - std::min<request_handle>(last, random() % 40);
        const auto erased = std::erase_if(plain.entries, [&](const auto& e) { return e.handle == handle; });
        ASSERT_EQ(room.leave(handle), erased == 1);
        break;
      }
      case 5: {
        std::vector<request_handle> gone;
        for (const auto& e : room.expired(now))
          gone.push_back(e.handle);
        std::vector<request_handle> expected;
        while (!plain.entries.empty() && plain.entries.front().until <= now) {
          expected.push_back(plain.entries.front().handle);
          plain.entries.erase(plain.entries.begin());
        }
        ASSERT_EQ(gone, expected);
        break;
      }
      case 6:
        if (random() % 50 == 0) {
          room.leave_all_of(0);
          plain.entries.clear();
        }
        break;
      default:
        if (const auto turn = plain.turn(now); turn != plain.entries.end()) {
          ASSERT_EQ(room.take(now).handle, turn->handle) << seed << " " << i;
          plain.entries.erase(turn);
        }
      }
      ASSERT_EQ(room.size(), plain.entries.size());
      const auto turn = plain.turn(now);
      const auto* next = room.next(now);
      ASSERT_EQ(next != nullptr, turn != plain.entries.end());
      if (next != nullptr) {
        ASSERT_EQ(next->handle, turn->handle) << seed << " " << i;
      }
    }
  }
}

} // namespace
} // namespace rankwise::core
