#include "tests/unit/core/mini_node.hpp"

#include "core/placement/rank_health.hpp"
#include "core/placement/waiting_room.hpp"

#include <gmock/gmock.h>

#include <array>

namespace rankwise::core {
namespace {

using test::at_ms;
using test::make_controller;
using test::make_request;
using test::order_of;
using testing::HasSubstr;

refusal refused(pool_controller& c, const place_order& o, timestamp now = at_ms(10)) {
  auto r = c.place(o, now);
  if (!std::holds_alternative<refusal>(r)) {
    ADD_FAILURE() << "was placed";
    return {};
  }
  return std::get<refusal>(r);
}

placement placed(pool_controller& c, const place_order& o, timestamp now = at_ms(10)) {
  auto r = c.place(o, now);
  if (!std::holds_alternative<placement>(r)) {
    ADD_FAILURE() << std::get<refusal>(r).text;
    return {};
  }
  return std::get<placement>(r);
}

generate_request pinned(std::int32_t rank) {
  auto r = make_request("p");
  r.data_parallel_rank = rank;
  return r;
}

TEST(pool_controller, a_policy_that_does_not_exist_is_an_error) {
  pool_options o;
  o.policy = "best";
  EXPECT_THROW(pool_controller{o}, std::invalid_argument);
}

TEST(pool_controller, choosing_a_rank_charges_it) {
  auto c = make_controller(2);
  const auto p = placed(c, order_of(1, make_request("a", 100, 50)));
  EXPECT_EQ(p.handle, 1u);
  EXPECT_EQ(p.epoch, 1u);
  EXPECT_EQ(p.dp_size, 2u);
  EXPECT_EQ(c.figures(p.rank.rank, at_ms(10)).placed_tokens, 100u);
  EXPECT_EQ(refused(c, order_of(1, make_request("a"))).reason, failure::duplicate_rid);
}

TEST(rank_health, every_mask_of_eight_ranks_leaves_enough_of_them_and_blames_no_majority) {
  for (const double share_max : {0.0, 0.25, 0.5, 1.0}) {
    for (unsigned mask = 0; mask < 256; ++mask) {
      std::vector<bool> unhealthy(8);
      for (std::size_t i = 0; i < 8; ++i)
        unhealthy[i] = (mask >> i & 1) != 0;
      const auto bad = static_cast<std::size_t>(__builtin_popcount(mask));
      const auto result = eligible(unhealthy, share_max);
      const auto left = static_cast<std::size_t>(std::count(result.begin(), result.end(), true));
      EXPECT_GE(left, 1u);
      EXPECT_LE(8 - left, static_cast<std::size_t>(8 * share_max)) << mask;
      const bool judged = bad <= static_cast<std::size_t>(8 * share_max) && bad < 8;
      for (std::size_t i = 0; i < 8; ++i)
        EXPECT_EQ(result[i], !judged || !unhealthy[i]) << mask << " rank " << i;
    }
  }
}

TEST(rank_health, a_rank_that_fails_everything_is_ejected_ever_longer_and_forgiven_when_it_serves) {
  const health_options o;
  rank_health h;
  timestamp now = at_ms(0);
  double last = 0;
  for (int round = 0; round < 5; ++round) {
    for (std::uint32_t i = 0; i < o.errors_min; ++i) {
      EXPECT_FALSE(h.unhealthy(now));
      h.on_ended(0, 1, now, o);
    }
    const auto begun = now;
    while (h.unhealthy(now))
      now += std::chrono::milliseconds{100};
    EXPECT_GT(to_seconds(now - begun), last);
    last = to_seconds(now - begun);
  }
  h.on_ended(1, 0, now, o);
  for (std::uint32_t i = 0; i < 2 * o.errors_min; ++i)
    h.on_ended(0, 1, now, o);
  const auto begun = now;
  while (h.unhealthy(now))
    now += std::chrono::milliseconds{100};
  EXPECT_LE(to_seconds(now - begun), 5.2);
}

TEST(rank_health, few_errors_among_many_requests_eject_nobody_and_cost_little) {
  const health_options o;
  rank_health h;
  for (int i = 0; i < 1000; ++i)
    h.on_ended(i % 10 == 0 ? 0 : 1, i % 10 == 0 ? 1 : 0, at_ms(i), o);
  EXPECT_FALSE(h.unhealthy(at_ms(1000)));
  EXPECT_NEAR(h.share(), 0.9, 0.02);
}

TEST(pool_controller, a_rank_that_fails_every_request_at_once_loses_its_share) {
  auto c = make_controller(4);
  std::array<int, 4> got{};
  request_handle handle = 0;
  std::vector<std::pair<request_handle, timestamp>> running;
  for (int ms = 0; ms < 4000; ms += 10) {
    const auto p = placed(c, order_of(++handle, make_request("r", 100, 50)), at_ms(ms));
    ++got[p.rank.rank];
    batch_progress done;
    done.rank = p.rank;
    done.epoch = p.epoch;
    if (p.rank.rank == 2) { // fails at once, so it is always the emptiest
      done.ended = {p.handle};
      done.errors = 1;
      c.progress(done, at_ms(ms));
    } else {
      running.emplace_back(p.handle, at_ms(ms + 200));
    }
    while (!running.empty() && running.front().second <= at_ms(ms)) {
      c.end(running.front().first, at_ms(ms));
      running.erase(running.begin());
    }
  }
  EXPECT_LE(got[2], 8) << "400 requests, and 5 are enough to know";
  for (const int rank : {0, 1, 3})
    EXPECT_GT(got[static_cast<std::size_t>(rank)], 100);
}

TEST(pool_controller, an_ejected_rank_gets_nothing_until_its_ejection_is_over) {
  pool_options o;
  o.policy = "round_robin"; // has no eye for the share that errors cost
  auto c = make_controller(4, o);
  for (request_handle h = 1; h <= 5; ++h) {
    auto failing = make_request("f");
    failing.data_parallel_rank = 2;
    placed(c, order_of(h, failing), at_ms(0));
    batch_progress done;
    done.rank = {0, 2};
    done.epoch = 1;
    done.ended = {h};
    done.errors = 1;
    EXPECT_EQ(c.progress(done, at_ms(0)), h == 5);
  }
  for (request_handle h = 10; h < 30; ++h)
    EXPECT_NE(placed(c, order_of(h, make_request("a")), at_ms(4900)).rank.rank, 2) << h;
  int back = 0;
  for (request_handle h = 30; h < 34; ++h)
    back += placed(c, order_of(h, make_request("a")), at_ms(5100)).rank.rank == 2 ? 1 : 0;
  EXPECT_EQ(back, 1);
}

/// Writes down what it is told.
class noting_policy final : public policy {
 public:
  explicit noting_policy(std::vector<std::string>& notes) : notes_(notes) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "noting"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override {
    return choice{ranks[0].rank, 0, false, 0};
  }
  void on_placed(std::uint16_t rank, const placement_request& r) override {
    notes_.push_back("placed " + std::to_string(r.handle) + " on " + std::to_string(rank) + " at " +
                     std::to_string((r.now - at_ms(0)) / std::chrono::milliseconds{1}));
  }
  void on_first_token(const leg_progress& leg) override {
    notes_.push_back("first token of " + std::to_string(leg.handle));
  }
  void on_step(const step_observation&) override { notes_.emplace_back("step"); }

 private:
  std::vector<std::string>& notes_;
};

TEST(pool_controller, a_policy_is_told_of_restored_legs_as_of_others) {
  std::vector<std::string> notes;
  pool_controller c{pool_options{}, std::make_unique<noting_policy>(notes)};
  c.rank_up(test::up(0, 0, 1), at_ms(0));
  leg_record a;
  a.handle = 7;
  a.epoch = 1;
  a.prefilled = true;
  a.prompt_tokens = 100;
  a.limit_tokens = 120;
  auto b = a;
  b.handle = 8;
  b.prefilled = false;
  ASSERT_TRUE(c.restore({a, b}, at_ms(5)).empty());
  EXPECT_THAT(notes, testing::ElementsAre("placed 7 on 0 at 5", "first token of 7", "placed 8 on 0 at 5"));
  EXPECT_EQ(c.figures(0, at_ms(5)).work_tokens, 100u) << "of the prompt that is still to be computed";
}

TEST(waiting_room, is_first_come_first_served_bounded_and_patient_for_so_long) {
  waiting_room room{2, std::chrono::seconds{1}};
  auto a = order_of(1, make_request("a"));
  auto b = order_of(2, make_request("b"));
  auto c = order_of(3, make_request("c"));
  EXPECT_TRUE(room.enter(a, at_ms(0)));
  EXPECT_TRUE(room.enter(b, at_ms(500)));
  EXPECT_FALSE(room.enter(c, at_ms(600)));
  EXPECT_EQ(c.rid, "c") << "untouched";
  EXPECT_EQ(room.next()->handle, 1u);
  EXPECT_TRUE(room.expired(at_ms(999)).empty());
  ASSERT_EQ(room.expired(at_ms(1000)).size(), 1u);
  EXPECT_EQ(room.next()->handle, 2u);
  EXPECT_TRUE(room.enter(c, at_ms(1000)));
  EXPECT_TRUE(room.leave(2));
  EXPECT_FALSE(room.leave(2));
  EXPECT_EQ(room.take().handle, 3u);
  EXPECT_EQ(room.next(), nullptr);
}

TEST(pool_controller, the_cap_on_requests_refuses_with_its_name) {
  pool_options o;
  o.requests_in_flight_max = 2;
  auto c = make_controller(1, o);
  placed(c, order_of(1, make_request("a")));
  placed(c, order_of(2, make_request("b")));
  const auto r = refused(c, order_of(3, make_request("c")));
  EXPECT_EQ(r.reason, failure::requests_in_flight_max);
  EXPECT_THAT(r.text, HasSubstr("requests_in_flight_max is 2"));
  c.end(1, at_ms(11));
  placed(c, order_of(3, make_request("c")));
}

TEST(pool_controller, the_cap_on_tokens_counts_what_may_be_generated) {
  pool_options o;
  o.tokens_in_flight_max = 100;
  auto c = make_controller(1, o);
  placed(c, order_of(1, make_request("a", 30, 20)));
  EXPECT_EQ(refused(c, order_of(2, make_request("b", 30, 21))).reason, failure::tokens_in_flight_max);
  placed(c, order_of(3, make_request("c", 30, 20)));
}

TEST(pool_controller, a_pin_is_kept_whatever_the_load) {
  auto c = make_controller(4);
  for (request_handle h = 1; h <= 10; ++h)
    EXPECT_EQ(placed(c, order_of(h, pinned(2))).rank.rank, 2);
  placed(c, order_of(11, make_request("free")));
  EXPECT_EQ(c.counts().placed, 11u);
  EXPECT_THAT(c.counts().placed_by, testing::ElementsAre(1, 10, 0)) << "policy, data_parallel_rank, bootstrap_room";
}

TEST(pool_controller, rank_9_of_8_is_an_error_that_names_the_ranks_that_there_are) {
  auto c = make_controller(8);
  const auto r = refused(c, order_of(1, pinned(9)));
  EXPECT_EQ(r.reason, failure::invalid_argument);
  EXPECT_THAT(r.text, HasSubstr("data_parallel_rank: 9"));
  EXPECT_THAT(r.text, HasSubstr("0 to 7"));
  EXPECT_EQ(refused(c, order_of(1, pinned(-1))).reason, failure::invalid_argument);
  EXPECT_EQ(c.charge_count(), 0u);
}

TEST(pool_controller, a_pin_to_a_rank_that_is_down_is_refused_unless_pins_are_hints) {
  for (const bool hint : {false, true}) {
    pool_options o;
    o.pin_is_hint = hint;
    auto c = make_controller(4, o);
    c.rank_down({0, 2}, 1);
    if (hint)
      EXPECT_NE(placed(c, order_of(1, pinned(2))).rank.rank, 2);
    else
      EXPECT_EQ(refused(c, order_of(1, pinned(2))).reason, failure::pinned_rank_unavailable);
  }
}

TEST(pool_controller, a_pin_to_a_suspect_rank_is_kept) {
  auto c = make_controller(2);
  c.rank_paused({0, 1}, 1, rank_state::suspect);
  EXPECT_EQ(placed(c, order_of(1, pinned(1))).rank.rank, 1);
}

TEST(pool_controller, a_pin_does_not_speak_of_the_ranks_that_prefill) {
  pool_options o;
  o.role = pool_role::prefill;
  auto c = make_controller(2, o);
  placed(c, order_of(1, pinned(7)));
}

TEST(pool_controller, a_prefill_pool_follows_a_room_whatever_its_policy) {
  pool_options o;
  o.role = pool_role::prefill;
  auto c = make_controller(4, o);
  auto request = make_request("r");
  for (const std::int64_t room : {std::int64_t{6}, std::int64_t{0x7fff'ffff'ffff'ffff}}) {
    request.bootstrap = bootstrap_info{"host", 1, room};
    EXPECT_EQ(placed(c, order_of(static_cast<request_handle>(room), request)).rank.rank, room % 4);
  }
  c.rank_down({0, 2}, 1);
  request.bootstrap->room = 2;
  const auto r = refused(c, order_of(99, request));
  EXPECT_EQ(r.reason, failure::no_rank_available);
  EXPECT_THAT(r.text, HasSubstr("bootstrap_room: 2"));
}

TEST(pool_controller, rooms_are_reduced_by_the_ranks_that_registered_not_by_those_that_are_here) {
  pool_options o;
  o.role = pool_role::prefill;
  pool_controller c{o};
  c.rank_up(test::up(0, 1, 1, 4), at_ms(0));
  EXPECT_EQ(c.dp_size(), 4u);
  auto request = make_request("r");
  request.bootstrap = bootstrap_info{"host", 1, 5};
  EXPECT_EQ(placed(c, order_of(1, request)).rank.rank, 1);
}

TEST(pool_controller, a_suspect_rank_is_used_only_when_no_rank_is_ready) {
  auto c = make_controller(2);
  c.rank_paused({0, 0}, 1, rank_state::suspect);
  for (request_handle h = 1; h <= 4; ++h)
    EXPECT_EQ(placed(c, order_of(h, make_request("a"))).rank.rank, 1);
  c.rank_down({0, 1}, 1);
  EXPECT_EQ(placed(c, order_of(5, make_request("a"))).rank.rank, 0);
  EXPECT_EQ(c.ranks_up(), 0u);
  c.rank_down({0, 0}, 1);
  EXPECT_EQ(refused(c, order_of(6, make_request("a"))).reason, failure::no_rank_available);
}

TEST(pool_controller, a_draining_rank_keeps_its_charges_and_gets_no_new_work) {
  auto c = make_controller(2);
  placed(c, order_of(1, pinned(0)));
  c.rank_paused({0, 0}, 1, rank_state::draining);
  EXPECT_EQ(c.figures(0, at_ms(10)).requests, 1u);
  for (request_handle h = 2; h <= 4; ++h)
    EXPECT_EQ(placed(c, order_of(h, make_request("a"))).rank.rank, 1);
}

TEST(pool_controller, a_rank_that_came_back_starts_with_a_small_share) {
  auto c = make_controller(2);
  auto again = test::up(0, 0, 2, 2);
  again.renewed = true;
  c.rank_down({0, 0}, 1);
  c.rank_up(again, at_ms(1000));
  std::array<int, 2> early{};
  request_handle h = 1;
  for (int i = 0; i < 44; ++i)
    ++early[placed(c, order_of(h++, make_request("a", 1000)), at_ms(1000)).rank.rank];
  EXPECT_GE(early[0], 1);
  EXPECT_LE(early[0], 6);
  std::array<int, 2> late{}; // 2 s later it counts as the others do, and has fewer
  for (int i = 0; i < 20; ++i)
    ++late[placed(c, order_of(h++, make_request("a", 1000)), at_ms(3001)).rank.rank];
  EXPECT_GE(late[0], 15); // by the time that its prompts take, which is in steps
}

TEST(pool_controller, news_of_an_older_epoch_have_no_effect) {
  pool_controller c{pool_options{}};
  c.rank_up(test::up(0, 0, 5), at_ms(0));
  c.rank_up(test::up(0, 0, 4), at_ms(1));
  EXPECT_TRUE(c.rank_down({0, 0}, 4).empty());
  c.rank_paused({0, 0}, 4, rank_state::suspect);
  EXPECT_EQ(c.ranks_up(), 1u);
  EXPECT_EQ(placed(c, order_of(1, make_request("a"))).epoch, 5u);
  EXPECT_EQ(c.rank_up(test::up(0, 0, 6), at_ms(2)), std::vector<request_handle>{1});
}

TEST(pool_controller, news_of_ranks_that_cannot_exist_have_no_effect) {
  pool_options o;
  o.ranks_max = 2;
  auto c = make_controller(1, o);
  EXPECT_TRUE(c.rank_up(test::up(0, 2), at_ms(0)).empty());
  EXPECT_TRUE(c.rank_up(test::up(1, 0), at_ms(0)).empty());
  EXPECT_TRUE(c.rank_down({0, 99}, 1).empty());
  c.rank_paused({0, 99}, 1, rank_state::suspect);
  EXPECT_EQ(c.dp_size(), 1u);
}

TEST(pool_controller, each_verdict_on_a_report_is_counted) {
  auto c = make_controller(1);
  c.report(test::report_of(0, 2, at_ms(1), 5));
  c.report(test::report_of(0, 2, at_ms(1), 5));
  c.report(test::report_of(0, 1, at_ms(1), 5));
  c.report(test::report_of(0, 3, at_ms(1), 5, 9));
  c.report(test::report_of(7, 3, at_ms(1), 5));
  auto other_pool = test::report_of(0, 4, at_ms(1), 5);
  other_pool.rank.pool = 3;
  c.report(other_pool);
  EXPECT_EQ(c.counts().reports, (std::array<std::uint64_t, report_verdict_count>{1, 1, 1, 1, 2}));
}

TEST(pool_controller, progress_of_a_batch_moves_the_charges) {
  auto c = make_controller(1);
  placed(c, order_of(1, make_request("a", 100)));
  placed(c, order_of(2, make_request("b", 50)));
  batch_progress p;
  p.rank = {0, 0};
  p.epoch = 1;
  p.first_tokens = {1};
  p.ended = {2, 77};
  p.generated_tokens = 3;
  c.progress(p, at_ms(20));
  EXPECT_TRUE(c.is_prefilled(1));
  EXPECT_EQ(c.figures(0, at_ms(20)).tokens, 103u);
  EXPECT_EQ(c.figures(0, at_ms(20)).prefill_tokens, 0u);
  EXPECT_EQ(c.counts().charges_ended, 1u);
  EXPECT_EQ(c.counts().ends_of_unknown_charges, 1u);
}

TEST(pool_controller, restored_legs_are_charged_as_they_were_and_those_on_lost_ranks_are_returned) {
  auto c = make_controller(2);
  leg_record a;
  a.handle = 1;
  a.rank = {0, 0};
  a.epoch = 1;
  a.prefilled = true;
  a.prompt_tokens = 100;
  a.limit_tokens = 120;
  leg_record b = a;
  b.handle = 2;
  b.rank.rank = 1;
  b.prefilled = false;
  leg_record released = a;
  released.handle = 3;
  released.released = true;
  leg_record other_epoch = a;
  other_epoch.handle = 4;
  other_epoch.epoch = 9;
  leg_record nowhere = a;
  nowhere.handle = 5;
  nowhere.rank.rank = 500;
  EXPECT_EQ(c.restore({a, b, released, other_epoch, nowhere}, at_ms(5)), (std::vector<request_handle>{4, 5}));
  EXPECT_EQ(c.figures(0, at_ms(5)).requests, 2u);
  EXPECT_EQ(c.figures(0, at_ms(5)).placed_tokens, 100u);
  EXPECT_EQ(c.figures(0, at_ms(5)).prefill_tokens, 0u);
  EXPECT_EQ(c.figures(1, at_ms(5)).prefill_tokens, 100u);
  EXPECT_TRUE(c.restore({a, b}, at_ms(6)).empty()); // twice is once
  EXPECT_EQ(c.charge_count(), 3u);
  for (request_handle h = 1; h <= 3; ++h)
    EXPECT_TRUE(c.end(h, at_ms(7)));
  EXPECT_EQ(c.figures(0, at_ms(8)).placed_tokens, 0u);
  EXPECT_EQ(c.figures(1, at_ms(8)).prefill_tokens, 0u);
}

TEST(pool_controller, an_end_of_an_attempt_that_is_not_charged_changes_nothing) {
  auto c = make_controller(1);
  auto order = order_of(1, make_request("a"));
  order.attempt = 2;
  placed(c, order);
  EXPECT_FALSE(c.end({1, 1, 0}, at_ms(11)).has_value());
  EXPECT_EQ(c.charged_attempt(1), 2u);
  EXPECT_TRUE(c.end({1, 2, 0}, at_ms(12)).has_value());
  EXPECT_EQ(c.charged_attempt(1), std::nullopt);
  EXPECT_EQ(c.counts().ends_of_unknown_charges, 1u);
}

TEST(pool_controller, an_owner_that_is_gone_leaves_no_charge_and_others_keep_theirs) {
  auto c = make_controller(2);
  const auto mine = make_handle(1, 1, 0);
  const auto others = make_handle(2, 1, 0);
  placed(c, order_of(mine, make_request("a")));
  placed(c, order_of(others, make_request("b")));
  EXPECT_EQ(c.owner_gone(1, at_ms(11)), std::vector<request_handle>{mine});
  EXPECT_EQ(c.charge_count(), 1u);
  EXPECT_TRUE(c.charged_attempt(others).has_value());
}

TEST(pool_controller, parts_of_one_engine_batch_that_went_to_several_owners_are_one_step) {
  std::vector<std::string> notes;
  pool_controller c{pool_options{}, std::make_unique<noting_policy>(notes)};
  c.rank_up(test::up(0, 0, 1), at_ms(0));
  batch_progress p;
  p.epoch = 1;
  p.batch = 7;
  for (const owner_id owner : {owner_id{1}, owner_id{2}, owner_id{3}}) {
    p.owner = owner;
    c.progress(p, at_ms(1));
  }
  p.batch = 8;
  c.progress(p, at_ms(2));
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "step"), 2);
}

TEST(pool_controller, rows_show_the_ledger_beside_the_newest_report) {
  auto c = make_controller(2);
  placed(c, order_of(1, pinned(1)));
  c.report(test::report_of(1, 1, at_ms(10), 4242));
  const auto rows = c.rows(at_ms(510));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_FALSE(rows[0].reported);
  EXPECT_EQ(rows[0].report_age_s, -1);
  EXPECT_TRUE(rows[1].reported);
  EXPECT_DOUBLE_EQ(rows[1].report_age_s, 0.5);
  EXPECT_EQ(rows[1].reported_kv_used, 4242u);
  EXPECT_EQ(rows[1].requests, 1u);
  EXPECT_EQ(rows[1].placements, 1u);
}

} // namespace
} // namespace rankwise::core
