#include "core/load/load_board.hpp"
#include "core/load/load_history.hpp"
#include "core/rank/rank_machine.hpp"
#include "core/supervision/restart_policy.hpp"

#include "tests/unit/core/mini_node.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace rankwise::core {
namespace {

using std::chrono::milliseconds;
using test::at_ms;

// A random source that always says the same.
struct fixed {
  std::uint64_t value;
  std::uint64_t operator()() const { return value; }
};
constexpr fixed middle{1ull << 63};
constexpr fixed lowest{0};
constexpr fixed highest{~0ull};

TEST(restart_policy, allows_exactly_5_restarts_in_30_seconds) {
  restart_policy p{restart_limits{}};
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(p.on_death(at_ms(i * 1000), middle).restart) << i;
  EXPECT_FALSE(p.on_death(at_ms(29'999), middle).restart);
  EXPECT_TRUE(p.on_death(at_ms(30'000), middle).restart); // the first one is 30 s ago
  EXPECT_FALSE(p.on_death(at_ms(30'001), middle).restart);
  p.reset();
  EXPECT_TRUE(p.on_death(at_ms(30'002), middle).restart);
}

TEST(restart_policy, the_backoff_doubles_and_falls_back_when_the_window_is_empty) {
  restart_limits limits;
  limits.restarts_max = 0; // no limit
  restart_policy p{limits};
  std::vector<std::int64_t> ms;
  for (int i = 0; i < 10; ++i)
    ms.push_back(std::chrono::duration_cast<milliseconds>(p.on_death(at_ms(i), middle).backoff).count());
  EXPECT_EQ(ms, (std::vector<std::int64_t>{10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000}));
  EXPECT_EQ(p.on_death(at_ms(31'000), middle).backoff, milliseconds{10});
}

TEST(restart_policy, jitter_stays_within_a_fifth) {
  EXPECT_EQ(restart_policy{restart_limits{}}.on_death(at_ms(0), lowest).backoff, milliseconds{8});
  const auto most = restart_policy{restart_limits{}}.on_death(at_ms(0), highest).backoff;
  EXPECT_LE(most, milliseconds{12});
  EXPECT_GT(most, std::chrono::microseconds{11'999});
}

TEST(restart_policy, without_a_limit_it_remembers_only_so_much) {
  restart_limits limits;
  limits.restarts_max = 0;
  restart_policy p{limits};
  for (int i = 0; i < 10'000; ++i)
    EXPECT_TRUE(p.on_death(at_ms(i), middle).restart);
}

constexpr rank_id id{0, 3};

rank_machine ready_machine(timestamp now) {
  rank_machine m{id, rank_timing{}};
  m.on_hello(1, "hello");
  m.on_registered(1, now);
  return m;
}

TEST(rank_machine, joins_by_hello_and_registration) {
  rank_machine m{id, rank_timing{}};
  ASSERT_TRUE(m.on_hello(1, "first"));
  EXPECT_EQ(m.state(), rank_state::joining);
  const auto t = m.on_registered(1, at_ms(0));
  ASSERT_TRUE(t);
  EXPECT_EQ(t->from, rank_state::joining);
  EXPECT_EQ(t->to, rank_state::ready);
  EXPECT_EQ(t->epoch, 1u);
  EXPECT_FALSE(m.on_registered(1, at_ms(1))); // once is enough
}

TEST(rank_machine, words_of_an_older_epoch_have_no_effect) {
  auto m = ready_machine(at_ms(0));
  ASSERT_TRUE(m.on_hello(2, "again"));
  EXPECT_FALSE(m.on_hello(2, "the same"));
  EXPECT_FALSE(m.on_registered(1, at_ms(1)));
  EXPECT_FALSE(m.on_lost(1, "old link"));
  EXPECT_FALSE(m.on_reconnected(1, at_ms(1)));
  EXPECT_EQ(m.state(), rank_state::joining);
  EXPECT_TRUE(m.on_registered(2, at_ms(1)));
}

TEST(rank_machine, a_lost_rank_is_down_once_and_comes_back_as_a_new_epoch) {
  auto m = ready_machine(at_ms(0));
  ASSERT_TRUE(m.on_lost(1, "killed"));
  EXPECT_EQ(m.state(), rank_state::down);
  EXPECT_FALSE(m.on_lost(1, "killed"));
  EXPECT_FALSE(m.on_registered(1, at_ms(1)));
  ASSERT_TRUE(m.on_reconnected(2, at_ms(2)));
  EXPECT_EQ(m.state(), rank_state::ready);
  EXPECT_EQ(m.epoch(), 2u);
}

TEST(rank_machine, silence_is_counted_from_when_there_was_something_to_say) {
  auto m = ready_machine(at_ms(0));
  EXPECT_FALSE(m.on_tick(at_ms(100'000), {0, 0, 0}, at_ms(0)));
  EXPECT_FALSE(m.on_tick(at_ms(100'000), {1, 0, 0}, at_ms(0)));
  EXPECT_FALSE(m.on_tick(at_ms(105'000), {1, 0, 0}, at_ms(0)));
  const auto t = m.on_tick(at_ms(105'001), {1, 0, 0}, at_ms(0));
  ASSERT_TRUE(t);
  EXPECT_EQ(t->to, rank_state::suspect);
}

TEST(rank_machine, a_long_prefill_explains_a_long_silence) {
  auto m = ready_machine(at_ms(0));
  m.on_tick(at_ms(0), {1, 60'000, 0}, at_ms(0));
  EXPECT_FALSE(m.on_tick(at_ms(65'000), {1, 60'000, 0}, at_ms(0)));
  EXPECT_TRUE(m.on_tick(at_ms(65'001), {1, 60'000, 0}, at_ms(0)));
}

TEST(rank_machine, a_suspect_rank_is_ready_again_when_heard_or_when_nothing_is_outstanding) {
  for (const bool heard : {true, false}) {
    auto m = ready_machine(at_ms(0));
    m.on_tick(at_ms(0), {1, 0, 0}, at_ms(0));
    ASSERT_TRUE(m.on_tick(at_ms(6000), {1, 0, 0}, at_ms(0)));
    const auto t = heard ? m.on_tick(at_ms(7000), {1, 0, 0}, at_ms(6500)) : m.on_tick(at_ms(7000), {0, 0, 0}, at_ms(0));
    ASSERT_TRUE(t);
    EXPECT_EQ(t->to, rank_state::ready);
  }
}

TEST(rank_machine, a_drain_ends_when_nothing_is_left_or_at_its_deadline) {
  for (const bool in_time : {true, false}) {
    auto m = ready_machine(at_ms(0));
    EXPECT_FALSE(m.on_drain_progress(at_ms(1), 0)); // nobody wants it
    ASSERT_TRUE(m.on_drain(at_ms(1000)));
    EXPECT_EQ(m.state(), rank_state::draining);
    EXPECT_FALSE(m.on_drain_progress(at_ms(999), 1));
    const auto t = m.on_drain_progress(at_ms(in_time ? 999 : 1000), in_time ? 0 : 1);
    ASSERT_TRUE(t);
    EXPECT_EQ(t->to, rank_state::drained);
    EXPECT_EQ(t->cause, in_time ? "its last request ended" : "the deadline of its drain passed, requests left: 1");
    EXPECT_EQ(m.on_undrain(at_ms(1001))->to, rank_state::ready);
    EXPECT_FALSE(m.on_undrain(at_ms(1002)));
  }
}

TEST(rank_machine, a_drained_rank_stays_so_when_its_link_returns_and_serves_when_a_new_process_dials) {
  auto m = ready_machine(at_ms(0));
  m.on_drain(at_ms(1000));
  m.on_lost(1, "killed");
  EXPECT_EQ(m.on_reconnected(2, at_ms(1))->to, rank_state::drained);
  m.on_hello(3, "hello");
  EXPECT_EQ(m.on_registered(3, at_ms(2))->to, rank_state::ready);
}

TEST(rank_machine, a_restored_rank_is_down_until_it_reconnects) {
  rank_machine m{id, rank_timing{}};
  EXPECT_EQ(m.on_restored(7)->to, rank_state::down);
  EXPECT_FALSE(m.on_restored(7));
  EXPECT_EQ(m.on_reconnected(8, at_ms(1))->to, rank_state::ready);
}

TEST(rank_machine, a_rank_hangs_when_its_silence_is_three_times_what_is_explained) {
  auto m = ready_machine(at_ms(0));
  m.on_tick(at_ms(0), {1, 10'000, 0}, at_ms(0)); // 5 s and 10 s of prefill
  m.on_tick(at_ms(45'000), {1, 10'000, 0}, at_ms(0));
  EXPECT_FALSE(m.hangs());
  m.on_tick(at_ms(45'001), {1, 10'000, 0}, at_ms(0));
  EXPECT_TRUE(m.hangs());
  m.on_tick(at_ms(45'002), {1, 10'000, 0}, at_ms(45'001));
  EXPECT_FALSE(m.hangs());
}

/// The rank has one request with `prompt` tokens, is silent for `silence_ms`, then speaks. Returns when it has.
std::int64_t one_silence(rank_machine& m, std::int64_t from_ms, std::int64_t silence_ms, std::uint64_t prompt,
                         std::uint64_t prefilled_before) {
  const auto end = from_ms + silence_ms;
  m.on_tick(at_ms(from_ms), {1, prompt, prefilled_before}, at_ms(from_ms));
  m.on_tick(at_ms(end - 100), {1, prompt, prefilled_before}, at_ms(from_ms));
  m.on_tick(at_ms(end), {1, prompt, prefilled_before}, at_ms(end));           // the link knows first,
  m.on_tick(at_ms(end + 100), {1, 0, prefilled_before + prompt}, at_ms(end)); // then the controller
  return end + 100;
}

TEST(rank_machine, learns_the_prefill_of_its_engine_from_the_silences_that_ended) {
  for (const std::uint64_t rate : {300u, 12'000u}) { // slower and faster than is believed at first
    auto m = ready_machine(at_ms(0));
    auto now = one_silence(m, 0, 4000, 4 * rate, 0);
    EXPECT_EQ(m.silence().longest_step(), duration{});
    EXPECT_DOUBLE_EQ(m.silence().prefill_tokens_per_s(), static_cast<double>(rate) / 3);
    m.on_tick(at_ms(now), {1, 20 * rate, 4 * rate}, at_ms(now)); // 5 s, and 20 s three times as slow as was seen
    EXPECT_FALSE(m.on_tick(at_ms(now + 65'000), {1, 20 * rate, 4 * rate}, at_ms(now)));
    const auto t = m.on_tick(at_ms(now + 65'001), {1, 20 * rate, 4 * rate}, at_ms(now));
    ASSERT_TRUE(t);
    EXPECT_THAT(t->cause, testing::HasSubstr("which explain 65 s"));
  }
}

TEST(rank_machine, an_engine_of_long_steps_is_waited_for_longer) {
  auto m = ready_machine(at_ms(0));
  const auto now = one_silence(m, 0, 4000, 0, 0);
  EXPECT_FALSE(m.on_tick(at_ms(now + 11'900), {1, 0, 0}, at_ms(now - 100)));
  EXPECT_TRUE(m.on_tick(at_ms(now + 11'901), {1, 0, 0}, at_ms(now - 100)));
}

TEST(rank_machine, learns_nothing_from_a_time_in_which_nobody_looked) {
  auto m = ready_machine(at_ms(0));
  m.on_tick(at_ms(0), {1, 0, 0}, at_ms(0));
  m.on_tick(at_ms(4000), {1, 0, 500}, at_ms(4000)); // its controller was away
  m.on_tick(at_ms(4250), {1, 0, 1000}, at_ms(4250));
  EXPECT_EQ(m.silence().longest_step(), duration{});
  EXPECT_DOUBLE_EQ(m.silence().prefill_tokens_per_s(), 1000);
}

TEST(rank_machine, forgets_what_it_learned_with_the_incarnation_and_after_many_silences) {
  auto m = ready_machine(at_ms(0));
  auto now = one_silence(m, 0, 4000, 400, 0);
  std::uint64_t done = 400;
  for (std::size_t i = 0; i < expected_silence::window; ++i, done += 6000)
    now = one_silence(m, now, 1000, 6000, done);
  EXPECT_DOUBLE_EQ(m.silence().prefill_tokens_per_s(), 2000);
  m.on_lost(1, "killed");
  m.on_reconnected(2, at_ms(now));
  EXPECT_DOUBLE_EQ(m.silence().prefill_tokens_per_s(), 1000);
}

TEST(rank_machine, a_controller_that_counts_from_nothing_again_teaches_no_prefill) {
  auto m = ready_machine(at_ms(0));
  m.on_tick(at_ms(0), {1, 9000, 50'000}, at_ms(0));
  m.on_tick(at_ms(2900), {1, 9000, 50'000}, at_ms(0));
  m.on_tick(at_ms(3000), {1, 9000, 50'000}, at_ms(3000));
  m.on_tick(at_ms(3100), {1, 9000, 100}, at_ms(3000));
  EXPECT_DOUBLE_EQ(m.silence().prefill_tokens_per_s(), 1000);
  EXPECT_EQ(m.silence().longest_step(), duration{});
}

TEST(rank_machine, every_state_has_a_name) {
  for (std::uint8_t i = 0; i < rank_state_count; ++i)
    EXPECT_NE(to_string(static_cast<rank_state>(i)), "unknown");
  for (std::uint8_t i = 0; i < failure_count; ++i)
    EXPECT_NE(to_string(static_cast<failure>(i)), "unknown");
}

TEST(load_board, the_newest_report_of_a_slot_wins) {
  load_board b{70};
  load_report r;
  EXPECT_FALSE(b.read(3, r));
  EXPECT_TRUE(b.publish(3, test::report_of(3, 1, at_ms(1), 10)));
  EXPECT_FALSE(b.publish(3, test::report_of(3, 2, at_ms(2), 20))); // one wake-up a drain
  EXPECT_FALSE(b.publish(69, test::report_of(69, 1, at_ms(2), 5)));
  ASSERT_TRUE(b.read(3, r));
  EXPECT_EQ(r, test::report_of(3, 2, at_ms(2), 20));
  std::vector<std::size_t> taken;
  EXPECT_EQ(b.drain([&](std::size_t i, const load_report&) { taken.push_back(i); }), 2u);
  EXPECT_EQ(taken, (std::vector<std::size_t>{3, 69}));
  EXPECT_EQ(b.drain([](std::size_t, const load_report&) {}), 0u);
  EXPECT_TRUE(b.publish(3, test::report_of(3, 3, at_ms(3), 30)));
}

TEST(load_board, a_slot_beyond_the_board_is_ignored) {
  load_board b{2};
  load_report r;
  EXPECT_FALSE(b.publish(2, r));
  EXPECT_FALSE(b.read(2, r));
}

TEST(load_board, a_restarted_reader_gets_every_report_that_there_ever_was) {
  load_board b{4};
  b.publish(1, test::report_of(1, 1, at_ms(1), 1));
  b.drain([](std::size_t, const load_report&) {});
  b.mark_all_dirty();
  EXPECT_EQ(b.drain([](std::size_t i, const load_report&) { EXPECT_EQ(i, 1u); }), 1u);
}

TEST(load_board, the_newest_value_of_every_rank_arrives_at_a_reader_on_another_thread) {
  constexpr std::size_t slots = 65;
  constexpr std::uint64_t last = 3000;
  load_board b{slots};
  std::atomic<std::uint32_t> wakes{0};
  std::vector<std::uint64_t> seen(slots);
  std::thread reader{[&] {
    std::uint32_t known = 0;
    std::size_t complete = 0;
    while (complete < slots) {
      wakes.wait(known, std::memory_order_acquire);
      known = wakes.load(std::memory_order_acquire);
      b.drain([&](std::size_t i, const load_report& r) {
        EXPECT_EQ(r.kv_used_tokens, r.sequence * 3); // never torn
        EXPECT_EQ(r.kv_total_tokens, r.sequence * 7);
        EXPECT_GE(r.sequence, seen[i]);
        if (r.sequence == last && seen[i] != last)
          ++complete;
        seen[i] = r.sequence;
      });
    }
  }};
  for (std::uint64_t n = 1; n <= last; ++n)
    for (std::size_t i = 0; i < slots; ++i) {
      load_report r;
      r.sequence = n;
      r.kv_used_tokens = n * 3;
      r.kv_total_tokens = n * 7;
      if (b.publish(i, r)) {
        wakes.fetch_add(1, std::memory_order_release);
        wakes.notify_one();
      }
    }
  reader.join();
  for (const auto n : seen)
    EXPECT_EQ(n, last);
}

rank_row row_of(std::uint16_t rank, std::uint32_t requests) {
  rank_row row;
  row.rank = {0, rank};
  row.state = rank_state::ready;
  row.requests = requests;
  row.reported_waiting = 2 * requests;
  row.tokens = 250;
  row.kv_capacity = 1000;
  return row;
}

TEST(load_history, keeps_five_minutes_of_each_rank_oldest_first) {
  load_history history;
  for (std::uint32_t i = 0; i < 310; ++i)
    history.add({row_of(0, i), row_of(1, 7)});
  const auto all = history.all();
  ASSERT_EQ(all.size(), 2u);
  const auto& seen = all.at({0, 0});
  ASSERT_EQ(seen.size(), 300u);
  EXPECT_EQ(seen.front()->requests, 10u);
  EXPECT_EQ(seen.back()->requests, 309u);
  EXPECT_EQ(seen.back()->waiting, 618u);
  EXPECT_EQ(seen.back()->kv_share, 0.25f);
}

TEST(load_history, shows_a_gap_where_a_rank_was_not_seen_and_forgets_it_after_five_minutes_of_them) {
  load_history history;
  history.add({row_of(0, 1), row_of(1, 1)});
  history.add({row_of(0, 1)});
  history.add({row_of(0, 1), row_of(1, 3)});
  const auto seen = history.all().at({0, 1});
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_FALSE(seen[1].has_value());
  EXPECT_EQ(seen[2]->requests, 3u);
  for (int i = 0; i < 299; ++i)
    history.add({row_of(0, 1)});
  EXPECT_EQ(history.all().count({0, 1}), 1u);
  history.add({row_of(0, 1)});
  EXPECT_EQ(history.all().count({0, 1}), 0u);
}

TEST(load_history, a_rank_that_joins_later_ends_where_the_others_end) {
  load_history history;
  history.add({row_of(0, 1)});
  history.add({row_of(0, 2), row_of(1, 5)});
  EXPECT_EQ(history.all().at({0, 0}).size(), 2u);
  EXPECT_EQ(history.all().at({0, 1}).size(), 1u);
}

} // namespace
} // namespace rankwise::core
