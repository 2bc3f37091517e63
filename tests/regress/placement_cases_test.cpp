#include "tests/unit/core/mini_node.hpp"

#include <gmock/gmock.h>

/// Cases from public reports against systems that do this job; the reference stands above each.
namespace rankwise::core {
namespace {

using std::chrono::milliseconds;
using test::at_ms;
using test::make_controller;
using test::make_request;
using test::mini_node;
using test::order_of;
using test::report_of;
using testing::Each;
using testing::ElementsAre;

class placement_cases : public testing::Test {
 protected:
  /// Places a request of `tokens` and says where; -1: refused.
  int place(pool_controller& c, std::size_t tokens, timestamp now, std::int32_t pin = -1) {
    auto r = make_request("r", tokens, 16);
    if (pin >= 0)
      r.data_parallel_rank = pin;
    const auto answer = c.place(order_of(next_++, r), now);
    const auto* p = std::get_if<placement>(&answer);
    return p != nullptr ? p->rank.rank : -1;
  }

  std::vector<int> spread(pool_controller& c, std::size_t tokens, int requests, timestamp now) {
    std::vector<int> counts(c.rows(now).size());
    for (int i = 0; i < requests; ++i)
      if (const int rank = place(c, tokens, now); rank >= 0)
        ++counts[static_cast<std::size_t>(rank)];
    return counts;
  }

  /// A request of `tokens` that the rank has prefilled and reports; requests of 0 tokens are left out.
  void occupy(pool_controller& c, std::uint16_t rank, std::size_t tokens, timestamp now) {
    if (tokens == 0)
      return;
    const auto handle = next_;
    ASSERT_EQ(place(c, tokens, now - milliseconds{200}, rank), rank);
    batch_progress p;
    p.rank = {0, rank};
    p.epoch = 1;
    p.first_tokens = {handle};
    c.progress(p, now - milliseconds{100});
    ASSERT_EQ(c.report(report_of(rank, ++sequence_, now, tokens)), report_verdict::accepted);
  }

  request_handle next_ = 1;
  std::uint64_t sequence_ = 0;
};

// 1. vllm PR22910
TEST_F(placement_cases, a_first_burst_before_any_load_update_is_spread_evenly) {
  auto c = make_controller(4);
  EXPECT_THAT(spread(c, 1000, 100, at_ms(0)), Each(25));
}

// 2. vllm PR47420, sglang#25235
TEST_F(placement_cases, two_equal_ranks_with_a_snapshot_every_100_ms_share_in_halves) {
  auto c = make_controller(2);
  std::vector<int> counts(2);
  auto now = at_ms(0);
  for (int i = 0; i < 100; ++i) {
    const auto handle = next_;
    ++counts[static_cast<std::size_t>(place(c, 100, now))];
    c.end(handle, now + milliseconds{5});
    now += milliseconds{10};
    if (i % 10 == 9) {
      ++sequence_;
      for (std::uint16_t r = 0; r < 2; ++r)
        c.report(report_of(r, sequence_, now, 0));
    }
  }
  EXPECT_NEAR(counts[0], 50, 1);
}

// 2. vllm PR47420, sglang#25235
TEST_F(placement_cases, eight_idle_ranks_and_100_sequential_requests_get_12_or_13_each) {
  auto c = make_controller(8);
  std::vector<int> counts(8);
  for (int i = 0; i < 100; ++i) {
    const auto handle = next_;
    ++counts[static_cast<std::size_t>(place(c, 100, at_ms(i)))];
    c.end(handle, at_ms(i));
  }
  EXPECT_THAT(counts, Each(testing::AnyOf(12, 13)));
}

// 3. vllm PR41626, sglang#26058
TEST_F(placement_cases, a_snapshot_that_was_sampled_before_a_dispatch_does_not_wipe_its_charge) {
  auto c = make_controller(2);
  EXPECT_EQ(place(c, 1000, at_ms(0), 0), 0);
  c.report(report_of(0, 1, at_ms(1), 0));
  EXPECT_EQ(c.figures(0, at_ms(1)).tokens, 1000u);
  EXPECT_EQ(place(c, 1000, at_ms(1)), 1);
}

// 3. vllm PR41626, sglang#26058
TEST_F(placement_cases, a_rank_that_republishes_without_having_read_its_socket_gets_no_more_than_the_others) {
  auto c = make_controller(4);
  for (int burst = 0; burst < 10; ++burst) {
    const auto now = at_ms(burst * 20);
    for (int i = 0; i < 4; ++i)
      place(c, 1000, now);
    c.report(report_of(3, ++sequence_, now + milliseconds{1}, 0));
  }
  for (std::uint16_t r = 0; r < 4; ++r)
    EXPECT_EQ(c.figures(r, at_ms(200)).placed_tokens, 10'000u) << r;
}

// 4. sglang PR22614
TEST_F(placement_cases, arrivals_inside_one_report_interval_are_charged) {
  for (const std::string policy : {"least_kv", "total_tokens"}) {
    pool_options o;
    o.policy = policy;
    auto c = make_controller(6, o);
    const std::vector<std::size_t> loads{0, 32'000, 26'000, 63'000, 14'000, 150'000};
    for (std::uint16_t r = 0; r < 6; ++r)
      occupy(c, r, loads[r], at_ms(1000));
    EXPECT_THAT(spread(c, 4000, 21, at_ms(1001)), ElementsAre(10, 2, 3, 0, 6, 0)) << policy;
  }
}

// 4. sglang PR22614: headroom compares times. What a burst's prompts take is much more than what the KV costs that is
// there, so it spreads them nearly evenly, and the fullest rank gets least.
TEST_F(placement_cases, a_burst_of_equal_prompts_is_spread_evenly) {
  auto c = make_controller(6);
  const std::vector<std::size_t> loads{0, 32'000, 26'000, 63'000, 14'000, 150'000};
  for (std::uint16_t r = 0; r < 6; ++r)
    occupy(c, r, loads[r], at_ms(1000));
  const auto counts = spread(c, 4000, 21, at_ms(1001));
  for (const auto count : counts)
    EXPECT_THAT(count, testing::AllOf(testing::Ge(2), testing::Le(5)));
  EXPECT_EQ(counts[5], *std::min_element(counts.begin(), counts.end()));
}

// 5. sglang#25142 (the way through the actors: tests/actors)
TEST_F(placement_cases, after_100000_stale_updates_a_fresh_one_decides) {
  auto c = make_controller(2);
  occupy(c, 1, 2000, at_ms(1000));
  occupy(c, 0, 1000, at_ms(1000));
  const auto seen = sequence_;
  for (std::uint64_t i = 0; i < 100'000; ++i)
    c.report(report_of(0, seen - 1, at_ms(900), 0));
  ASSERT_EQ(c.report(report_of(0, seen + 1, at_ms(1001), 500'000)), report_verdict::accepted);
  EXPECT_EQ(place(c, 100, at_ms(1002)), 1);
  EXPECT_EQ(c.counts().reports[static_cast<std::size_t>(report_verdict::out_of_order)], 100'000u);
}

// 6. smg PR2131
TEST_F(placement_cases, a_rank_that_empties_and_falls_silent_after_a_busy_report_is_idle_at_once) {
  auto c = make_controller(2);
  const auto handle = next_;
  occupy(c, 0, 900'000, at_ms(1000));
  occupy(c, 1, 50'000, at_ms(1000));
  batch_progress p;
  p.rank = {0, 0};
  p.epoch = 1;
  p.ended = {handle};
  c.progress(p, at_ms(1010));
  EXPECT_EQ(place(c, 10'000, at_ms(1011)), 0);
}

// 7. llm-d#2408
TEST_F(placement_cases, silence_of_the_only_rank_does_not_stop_dispatch) {
  auto c = make_controller(1);
  c.rank_paused({0, 0}, 1, rank_state::suspect);
  EXPECT_EQ(place(c, 10, at_ms(300)), 0);
  EXPECT_EQ(c.rows(at_ms(300))[0].state, rank_state::suspect); // and it shows
}

// 8. vllm#36748
TEST_F(placement_cases, nothing_queues_on_a_full_rank_while_another_has_room) {
  auto c = make_controller(2);
  occupy(c, 0, 1'000'000, at_ms(1000));
  occupy(c, 1, 300'000, at_ms(1000));
  EXPECT_THAT(spread(c, 5000, 64, at_ms(1001)), ElementsAre(0, 64));
}

// 9. vllm PR40795
TEST_F(placement_cases, two_short_requests_weigh_less_than_a_long_one) {
  auto c = make_controller(2);
  place(c, 10'000, at_ms(0), 0);
  place(c, 1000, at_ms(0), 1);
  place(c, 1000, at_ms(0), 1);
  EXPECT_EQ(place(c, 1000, at_ms(1)), 1);
}

// 10. sglang#16080
TEST_F(placement_cases, long_requests_in_step_with_the_ranks_do_not_pile_up_on_one) {
  auto c = make_controller(4);
  for (int i = 0; i < 10; ++i)
    for (const std::size_t tokens : {32'000UL, 1000UL, 1000UL, 1000UL})
      place(c, tokens, at_ms(i));
  std::uint64_t most = 0;
  std::uint64_t sum = 0;
  for (std::uint16_t r = 0; r < 4; ++r) {
    const auto tokens = c.figures(r, at_ms(10)).placed_tokens;
    most = std::max(most, tokens);
    sum += tokens;
  }
  EXPECT_EQ(sum, 350'000u);
  EXPECT_LE(static_cast<double>(most), 1.2 * static_cast<double>(sum) / 4);
}

// 11.
TEST_F(placement_cases, reports_out_of_order_or_repeated_have_no_effect) {
  auto c = make_controller(2);
  occupy(c, 0, 1000, at_ms(1000));
  const auto before = c.figures(0, at_ms(1001)).tokens;
  EXPECT_EQ(c.report(report_of(0, sequence_, at_ms(1001), 77)), report_verdict::repeated);
  EXPECT_EQ(c.report(report_of(0, sequence_ - 1, at_ms(1001), 77)), report_verdict::out_of_order);
  EXPECT_EQ(c.figures(0, at_ms(1001)).tokens, before);
}

// 12. sglang#16650; 44: a tail of zeros is no report, and never reaches the controller (tests/unit/wire)
TEST_F(placement_cases, a_batch_without_load_delivers_its_outputs_and_changes_no_load) {
  auto n = mini_node::unified(1);
  n.controllers[0]->report(report_of(0, 1, n.now, 4000));
  n.submit(1, make_request("a", 100));
  const auto before = n.controllers[0]->figures(0, n.now).tokens;
  n.output(n.sent[0], 3);
  EXPECT_EQ(n.tokens[1], 3u);
  EXPECT_EQ(n.controllers[0]->figures(0, n.now).tokens, before);
  EXPECT_TRUE(n.outcomes[1].empty());
}

// 19. sglang#22872
TEST_F(placement_cases, a_dead_rank_with_a_drained_snapshot_gets_none_of_the_next_100) {
  auto c = make_controller(8);
  for (std::uint16_t r = 0; r < 8; ++r)
    occupy(c, r, r == 3 ? 10 : 100'000, at_ms(1000));
  c.rank_down({0, 3}, 1);
  EXPECT_EQ(c.report(report_of(3, ++sequence_, at_ms(1001), 0)), report_verdict::unknown_rank);
  EXPECT_EQ(spread(c, 100, 100, at_ms(1002))[3], 0);
}

// 26. sglang: no input ids under total_tokens, a pin to an inactive rank
TEST_F(placement_cases, one_bad_request_fails_alone) {
  pool_options o;
  o.policy = "total_tokens";
  auto c = make_controller(2, o);
  c.rank_down({0, 1}, 1);
  EXPECT_EQ(place(c, 10, at_ms(0), 1), -1);
  EXPECT_EQ(place(c, 0, at_ms(0)), 0); // the front refuses it; here it must do no harm
  EXPECT_EQ(place(c, 10, at_ms(0)), 0);
}

// 27. dynamo PR6695, sglang PR6750, and 37
TEST_F(placement_cases, rank_9_of_8_is_an_error_and_never_another_rank) {
  auto c = make_controller(8);
  EXPECT_EQ(place(c, 10, at_ms(0), 9), -1);
  EXPECT_EQ(place(c, 10, at_ms(0), 8), -1);
  EXPECT_EQ(place(c, 10, at_ms(0), 7), 7);
}

// 28. dynamo PR7994
TEST_F(placement_cases, an_absent_rank_is_unset_and_not_rank_0) {
  auto c = make_controller(4);
  place(c, 10'000, at_ms(0), 0);
  EXPECT_NE(place(c, 10, at_ms(0)), 0);
}

// 29. sglang#18802
TEST_F(placement_cases, a_batch_is_split_and_never_broadcast) {
  auto n = mini_node::unified(4);
  for (stream_id s = 1; s <= 8; ++s)
    n.submit(s, make_request("r" + std::to_string(s)));
  EXPECT_EQ(n.sent.size(), 8u);
  for (std::uint16_t r = 0; r < 4; ++r)
    EXPECT_EQ(n.requests_on(r), 2u);
}

// 31. sglang#29725
TEST_F(placement_cases, an_odd_room_of_two_prefill_ranks_is_accepted_on_rank_1) {
  auto n = mini_node::pairs(2);
  auto r = make_request("a");
  r.bootstrap = bootstrap_info{"gateway", 1, 12'345};
  n.submit(1, r);
  EXPECT_EQ(n.leg_on(0, 0).rank.rank, 1);
}

// 32. sglang PR15617
TEST_F(placement_cases, round_robin_over_400_rooms_is_round_robin) {
  pool_options o;
  o.policy = "round_robin";
  o.role = pool_role::decode;
  auto c = make_controller(4, o);
  std::vector<int> counts(4);
  for (request_handle h = 1; h <= 400; ++h) {
    auto r = make_request("r");
    r.bootstrap = bootstrap_info{"gateway", 1, static_cast<std::int64_t>(h * 4)}; // every room is 0 modulo 4
    ++counts[std::get<placement>(c.place(order_of(h, r), at_ms(0))).rank.rank];
  }
  EXPECT_THAT(counts, Each(100));
}

// 33. sglang PR26486
TEST_F(placement_cases, three_samples_have_three_rooms) {
  auto n = mini_node::pairs(4);
  auto r = make_request("a");
  r.samples = 3;
  n.submit(1, r);
  std::map<std::int64_t, int> rooms;
  for (std::size_t i = 0; i < 3; ++i)
    ++rooms[n.leg_on(1, i).bootstrap.room];
  EXPECT_EQ(rooms.size(), 3u);
}

// 34. sglang#31206
TEST_F(placement_cases, without_a_prefill_rank_no_decode_leg_is_sent) {
  auto n = mini_node::pairs(2);
  for (std::uint16_t r = 0; r < 2; ++r)
    n.lose({0, r});
  n.submit(1, make_request("a"));
  EXPECT_TRUE(n.sent.empty());
  ASSERT_EQ(n.outcomes[1].size(), 1u);
  EXPECT_EQ(n.outcomes[1][0].reason, failure::no_rank_available);
  EXPECT_EQ(n.charges(), 0u);
}

// 35. smg PR2035
TEST_F(placement_cases, forty_pairs_on_4_prefill_and_4_decode_ranks_are_10_each) {
  auto n = mini_node::pairs(4);
  for (stream_id s = 1; s <= 40; ++s)
    n.submit(s, make_request("r" + std::to_string(s)));
  for (std::uint16_t pool = 0; pool < 2; ++pool)
    for (std::uint16_t r = 0; r < 4; ++r)
      EXPECT_EQ(n.requests_on(r, pool), 10u) << pool << "/" << r;
}

// 38. one of four ranks killed
TEST_F(placement_cases, requests_that_have_not_started_on_a_killed_rank_move_and_all_succeed) {
  auto n = mini_node::unified(4);
  for (stream_id s = 1; s <= 20; ++s)
    n.submit(s, make_request("r" + std::to_string(s)));
  n.lose({0, 2});
  EXPECT_EQ(n.controllers[0]->ranks_up(), 3u);
  for (const auto& leg : std::vector<mini_node::sent_leg>(n.sent))
    n.output(leg, 1, finish_reason::stop);
  EXPECT_EQ(n.table.counts().completed, 20u);
  n.replace({0, 2}, 2, 4); // its replacement serves
  n.submit(21, make_request("r21"));
  n.submit(22, make_request("r22"));
  n.submit(23, make_request("r23"));
  n.submit(24, make_request("r24"));
  EXPECT_EQ(n.requests_on(2), 1u);
}

// 41. a dp-aware gateway pins ranks 1..n-1 and sends rank 0 unpinned
TEST_F(placement_cases, requests_pinned_to_all_ranks_but_0_beside_unpinned_ones_are_balanced) {
  auto c = make_controller(4);
  for (int i = 0; i < 40; ++i)
    place(c, 1000, at_ms(i), i % 4 == 0 ? -1 : i % 4);
  for (std::uint16_t r = 0; r < 4; ++r)
    EXPECT_NEAR(c.figures(r, at_ms(40)).requests, 10, 1) << r;
}

} // namespace
} // namespace rankwise::core
