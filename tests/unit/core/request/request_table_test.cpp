#include "tests/unit/core/mini_node.hpp"

#include <gmock/gmock.h>

#include <random>
#include <set>

namespace rankwise::core {
namespace {

using test::make_request;
using test::mini_node;
using testing::HasSubstr;
using testing::IsEmpty;

void expect_clean(mini_node& n) {
  n.checker.finish();
  EXPECT_THAT(n.checker.violations(), IsEmpty());
  EXPECT_EQ(n.table.open_streams(), 0u);
  EXPECT_EQ(n.table.counts().in_flight(), 0u);
  EXPECT_EQ(n.charges(), 0u);
  EXPECT_THAT(n.running, IsEmpty()) << "of every leg that was sent its rank is told the end";
  EXPECT_FALSE(n.table.next_deadline().has_value());
}

outcome only_outcome(mini_node& n, stream_id stream) {
  EXPECT_EQ(n.outcomes[stream].size(), 1u);
  return n.outcomes[stream].empty() ? outcome{} : n.outcomes[stream].front();
}

TEST(request_table, a_request_lives_from_submission_to_its_last_token) {
  auto n = mini_node::unified(2);
  n.submit(1, make_request("a"));
  ASSERT_EQ(n.sent.size(), 1u);
  EXPECT_EQ(n.table.counts().accepted, 1u);
  n.output(n.sent[0], 1);
  n.output(n.sent[0], 3);
  n.output(n.sent[0], 2, finish_reason::stop);
  EXPECT_EQ(n.tokens[1], 6u);
  EXPECT_EQ(n.finishes[1], 1u);
  EXPECT_TRUE(n.outcomes[1].empty()); // a completed stream ends with the finish of its last sample
  EXPECT_EQ(n.table.counts().completed, 1u);
  EXPECT_THAT(n.engine_aborts, IsEmpty());
  expect_clean(n);
}

TEST(request_table, n_samples_are_placed_each_by_itself_and_end_together) {
  auto n = mini_node::unified(4);
  auto r = make_request("a");
  r.samples = 3;
  n.submit(1, r);
  ASSERT_EQ(n.sent.size(), 3u);
  std::set<std::uint16_t> ranks;
  for (const auto& leg : n.sent)
    ranks.insert(leg.rank.rank);
  EXPECT_EQ(ranks.size(), 3u);
  n.output(n.sent[1], 2, finish_reason::length);
  n.output(n.sent[0], 1, finish_reason::stop);
  EXPECT_EQ(n.table.counts().completed, 0u);
  n.output(n.sent[2], 1, finish_reason::stop);
  EXPECT_EQ(n.finishes[1], 3u);
  EXPECT_EQ(n.table.counts().accepted, 1u);
  EXPECT_EQ(n.table.counts().completed, 1u);
  expect_clean(n);
}

TEST(request_table, one_failed_sample_ends_the_others) {
  auto n = mini_node::unified(4);
  auto r = make_request("a");
  r.samples = 3;
  n.submit(1, r);
  n.output(n.sent[1], 0, finish_reason::abort, 500);
  EXPECT_EQ(only_outcome(n, 1).reason, failure::engine_error);
  EXPECT_EQ(n.engine_aborts.size(), 2u);
  EXPECT_EQ(n.aborts_of(n.sent[1].handle), 0u); // the engine ended this one itself
  expect_clean(n);
}

TEST(request_table, a_pair_reserves_both_ranks_before_either_is_sent_anything) {
  auto n = mini_node::pairs(4);
  n.hold_orders();
  n.submit(1, make_request("a"));
  ASSERT_EQ(n.pending[0].places.size(), 1u);
  EXPECT_TRUE(n.pending[0].places[0].of_pair);
  EXPECT_EQ(n.pending[1].places.size(), 0u) << "the decode rank is chosen when there is one that prefills";
  n.pump();
  ASSERT_EQ(n.sent.size(), 2u);
  const auto prefill = n.leg_on(0, 0);
  const auto decode = n.leg_on(1, 0);
  EXPECT_EQ(prefill.handle, decode.handle);
  EXPECT_EQ(prefill.bootstrap, decode.bootstrap);
  EXPECT_GE(prefill.bootstrap.room, 0);
  EXPECT_EQ(prefill.bootstrap.room % 4, prefill.rank.rank);
  EXPECT_EQ(prefill.bootstrap.port, 8998);
  n.output(prefill, 1, finish_reason::length);
  EXPECT_EQ(n.tokens[1], 0u); // the decode leg tells them
  n.output(decode, 1);
  n.output(decode, 1, finish_reason::stop);
  EXPECT_EQ(n.tokens[1], 2u);
  EXPECT_THAT(n.engine_aborts, IsEmpty());
  expect_clean(n);
}

TEST(request_table, a_pair_whose_prefill_rank_is_lost_before_it_has_a_decode_rank_begins_anew) {
  auto n = mini_node::pairs(2);
  n.hold_orders();
  n.submit(1, make_request("a"));
  const auto order = n.pending[0].places.at(0);
  n.pending = std::vector<pool_orders>(2);
  const auto placed = std::get<placement>(n.controllers[0]->place(order, n.now));
  n.table.on_placement(placed, n.now, n.fx);
  ASSERT_EQ(n.fx.pools[1].places.size(), 1u);
  n.lose(placed.rank);
  n.pump();
  ASSERT_EQ(n.sent.size(), 2u) << "both legs, once";
  EXPECT_NE(n.leg_on(0, 0).rank.rank, placed.rank.rank);
  EXPECT_EQ(n.leg_on(1, 0).attempt, 1u);
  n.output(n.leg_on(1, 0), 1, finish_reason::stop);
  EXPECT_THAT(n.engine_aborts, IsEmpty());
  expect_clean(n);
}

TEST(request_table, the_prefill_charge_goes_with_the_first_decode_token) {
  auto n = mini_node::pairs(1);
  n.submit(1, make_request("a", 100));
  EXPECT_EQ(n.controllers[0]->figures(0, n.now).placed_tokens, 100u);
  n.output(n.leg_on(1, 0), 1);
  EXPECT_EQ(n.controllers[0]->figures(0, n.now).placed_tokens, 0u);
  EXPECT_EQ(n.controllers[0]->figures(0, n.now).requests, 1u);
  n.output(n.leg_on(1, 0), 1, finish_reason::stop); // before the prefill leg's last word
  EXPECT_THAT(n.engine_aborts, IsEmpty());
  expect_clean(n);
}

TEST(request_table, a_failed_prefill_leg_ends_the_decode_leg) {
  auto n = mini_node::pairs(2);
  n.submit(1, make_request("a"));
  n.output(n.leg_on(0, 0), 0, finish_reason::abort, 500);
  EXPECT_EQ(only_outcome(n, 1).reason, failure::partner_leg_failed);
  EXPECT_EQ(n.engine_aborts, (std::vector<std::pair<std::uint16_t, request_handle>>{{1, n.sent[0].handle}}));
  expect_clean(n);
}

TEST(request_table, a_failed_decode_leg_ends_the_prefill_leg) {
  auto n = mini_node::pairs(2);
  n.submit(1, make_request("a"));
  n.output(n.leg_on(1, 0), 0, finish_reason::abort);
  EXPECT_EQ(only_outcome(n, 1).reason, failure::engine_aborted);
  EXPECT_THAT(only_outcome(n, 1).text, HasSubstr("no memory"));
  EXPECT_EQ(n.engine_aborts, (std::vector<std::pair<std::uint16_t, request_handle>>{{0, n.sent[0].handle}}));
  expect_clean(n);
}

// 43. bootstrap rooms of 63 bits
TEST(request_table, a_room_of_a_gateway_is_kept_whole) {
  auto n = mini_node::pairs(4);
  auto r = make_request("a");
  r.bootstrap = bootstrap_info{"gateway", 77, 0x7fff'ffff'ffff'fff1};
  n.submit(1, r);
  EXPECT_EQ(n.leg_on(0, 0).bootstrap, *r.bootstrap);
  EXPECT_EQ(n.leg_on(1, 0).bootstrap, *r.bootstrap);
  EXPECT_EQ(n.leg_on(0, 0).rank.rank, 0x7fff'ffff'ffff'fff1 % 4);
  n.cancel(1);
  expect_clean(n);
}

// Each row is a state of the request; whatever it is, a cancel gives one end order a leg and one outcome.
TEST(request_table, a_cancel_in_every_state_ends_each_open_leg_exactly_once_with_an_abort) {
  struct state {
    const char* name;
    bool pair;
    int steps; // 0 placing, 1 placed, 2 first token, 3 (pair) prefill leg ended
  };
  for (const auto& s : std::initializer_list<state>{{"placing", false, 0},
                                                    {"placed", false, 1},
                                                    {"streaming", false, 2},
                                                    {"pair placing", true, 0},
                                                    {"pair placed", true, 1},
                                                    {"pair streaming", true, 2},
                                                    {"pair prefilled", true, 3}}) {
    SCOPED_TRACE(s.name);
    auto n = s.pair ? mini_node::pairs(2) : mini_node::unified(2);
    const std::uint16_t token_pool = s.pair ? 1 : 0;
    if (s.steps == 0)
      n.hold_orders();
    n.submit(1, make_request("a"));
    if (s.steps >= 2)
      n.output(n.leg_on(token_pool, 0), 1);
    if (s.steps >= 3)
      n.output(n.leg_on(0, 0), 1, finish_reason::length);
    n.cancel(1);
    n.cancel(1); // once more is no error
    if (s.steps == 0) {
      // The end follows the order that it ends: the controllers see the place first.
      ASSERT_EQ(n.pending[0].ends.size(), 1u);
      if (s.pair) {
        EXPECT_EQ(n.pending[1].ends.size() + n.pending[1].places.size(), 0u) << "its turn had not come";
      }
      const auto outcome = only_outcome(n, 1);
      EXPECT_EQ(outcome.kind, outcome_kind::cancelled);
      continue;
    }
    const std::size_t open_legs = !s.pair ? 1 : s.steps == 3 ? 1 : 2;
    EXPECT_EQ(n.ends.size(), open_legs);
    for (const auto& [pool, end] : n.ends) {
      EXPECT_EQ(end.generated, pool == token_pool && s.steps >= 2 ? 1u : 0u);
    }
    EXPECT_EQ(n.engine_aborts.size(), open_legs);
    EXPECT_EQ(only_outcome(n, 1).kind, outcome_kind::cancelled);
    EXPECT_EQ(only_outcome(n, 1).reason, failure::client_cancelled);
    n.output(n.leg_on(token_pool, 0), 1); // late: nobody hears it
    EXPECT_EQ(n.table.counts().outputs_of_unknown_requests, 1u);
    expect_clean(n);
  }
}

TEST(request_table, an_abort_by_rid_cancels_and_unknown_rids_are_no_error) {
  auto n = mini_node::unified(1);
  n.submit(1, make_request("a"));
  n.abort("b");
  EXPECT_EQ(n.table.open_streams(), 1u);
  n.abort("a");
  n.abort("a");
  EXPECT_EQ(only_outcome(n, 1).reason, failure::aborted_by_request);
  EXPECT_EQ(n.engine_aborts.size(), 1u);
  expect_clean(n);
}

TEST(request_table, a_rid_in_flight_is_refused_and_free_again_afterwards) {
  auto n = mini_node::unified(1);
  n.submit(1, make_request("a"));
  n.submit(2, make_request("a"));
  EXPECT_EQ(only_outcome(n, 2).kind, outcome_kind::refused);
  EXPECT_EQ(only_outcome(n, 2).reason, failure::duplicate_rid);
  EXPECT_TRUE(n.outcomes[1].empty());
  n.output(n.sent[0], 1, finish_reason::stop);
  n.submit(3, make_request("a"));
  EXPECT_EQ(n.sent.size(), 2u);
  EXPECT_NE(n.sent[0].handle, n.sent[1].handle); // a handle never comes again
  n.output(n.sent[0], 1);
  EXPECT_EQ(n.tokens[3], 0u);
  n.cancel(3);
  expect_clean(n);
}

TEST(request_table, beyond_its_streams_it_refuses) {
  request_table_options o;
  o.streams_max = 1;
  auto n = mini_node::unified(1, {}, o);
  n.submit(1, make_request("a"));
  n.submit(2, make_request("b"));
  EXPECT_EQ(only_outcome(n, 2).reason, failure::request_manager_overloaded);
  n.cancel(1);
  expect_clean(n);
}

TEST(request_table, a_rank_lost_before_the_first_token_moves_the_request) {
  auto n = mini_node::unified(2);
  n.submit(1, make_request("a"));
  const auto first = n.sent[0];
  n.lose(first.rank);
  ASSERT_EQ(n.sent.size(), 2u);
  EXPECT_NE(n.sent[1].rank, first.rank);
  EXPECT_EQ(n.sent[1].attempt, 1u);
  EXPECT_EQ(n.table.counts().moved, 1u);
  n.output(first, 1); // the dead rank's last words
  EXPECT_EQ(n.table.counts().outputs_of_old_attempts, 1u);
  n.output(n.sent[1], 2, finish_reason::stop);
  EXPECT_EQ(n.tokens[1], 2u);
  EXPECT_EQ(n.table.counts().accepted, 1u);
  expect_clean(n);
}

TEST(request_table, a_rank_lost_after_the_first_token_ends_the_request_with_its_reason) {
  auto n = mini_node::unified(2);
  n.submit(1, make_request("a"));
  n.output(n.sent[0], 1);
  n.lose(n.sent[0].rank);
  EXPECT_EQ(n.sent.size(), 1u);
  EXPECT_EQ(only_outcome(n, 1).kind, outcome_kind::failed);
  EXPECT_EQ(only_outcome(n, 1).reason, failure::rank_lost);
  EXPECT_THAT(only_outcome(n, 1).text, HasSubstr("killed"));
  expect_clean(n);
}

TEST(request_table, a_sample_that_moves_and_ends_in_one_step_leaves_no_order_behind) {
  pool_options pool;
  pool.pin_is_hint = true;
  auto n = mini_node::unified(2, pool);
  auto r = make_request("a");
  r.samples = 2;
  r.data_parallel_rank = 0;
  n.submit(1, r);
  n.output(n.sent[1], 1); // this sample cannot move any more, the other one can
  n.lose({0, 0});
  EXPECT_EQ(only_outcome(n, 1).reason, failure::rank_lost);
  EXPECT_EQ(n.sent.size(), 2u);
  expect_clean(n);
}

TEST(request_table, outputs_of_another_epoch_are_dropped_and_counted) {
  auto n = mini_node::unified(1);
  n.submit(1, make_request("a"));
  auto old = n.sent[0];
  old.epoch = 9;
  n.output(old, 1);
  EXPECT_EQ(n.table.counts().outputs_of_old_epochs, 1u);
  EXPECT_EQ(n.tokens[1], 0u);
  n.cancel(1);
  expect_clean(n);
}

TEST(request_table, a_pair_moves_as_a_whole_and_its_other_leg_is_aborted) {
  auto n = mini_node::pairs(2);
  n.submit(1, make_request("a"));
  const auto prefill = n.leg_on(0, 0);
  const auto decode = n.leg_on(1, 0);
  n.lose(decode.rank);
  EXPECT_EQ(n.engine_aborts, (std::vector<std::pair<std::uint16_t, request_handle>>{{0, prefill.handle}}));
  ASSERT_EQ(n.sent.size(), 4u);
  EXPECT_NE(n.leg_on(0, 1).bootstrap.room, prefill.bootstrap.room); // a new room for a new attempt
  EXPECT_EQ(n.leg_on(0, 1).bootstrap.room % 2, n.leg_on(0, 1).rank.rank);
  n.output(n.leg_on(1, 1), 1, finish_reason::stop);
  expect_clean(n);
}

TEST(request_table, a_prefill_rank_lost_after_the_handover_does_not_matter) {
  auto n = mini_node::pairs(2);
  n.submit(1, make_request("a"));
  n.output(n.leg_on(1, 0), 1);
  n.lose(n.leg_on(0, 0).rank);
  EXPECT_TRUE(n.outcomes[1].empty());
  n.output(n.leg_on(1, 0), 1, finish_reason::stop);
  EXPECT_EQ(n.table.counts().completed, 1u);
  expect_clean(n);
}

TEST(request_table, a_refusal_before_acceptance_is_a_refusal) {
  auto n = mini_node::unified(0);
  n.submit(1, make_request("a"));
  EXPECT_EQ(only_outcome(n, 1).kind, outcome_kind::refused);
  EXPECT_EQ(only_outcome(n, 1).reason, failure::no_rank_available);
  EXPECT_EQ(n.table.counts().accepted, 0u);
  EXPECT_EQ(n.table.counts().refused, 1u);
  expect_clean(n);
}

TEST(request_table, a_full_queue_is_tried_again_four_times_in_all) {
  auto n = mini_node::unified(4);
  n.queues_full = true;
  n.submit(1, make_request("a"));
  EXPECT_EQ(only_outcome(n, 1).kind, outcome_kind::failed); // it had been accepted
  EXPECT_EQ(only_outcome(n, 1).reason, failure::rank_queue_full);
  EXPECT_EQ(n.controllers[0]->counts().placed, 4u);
  EXPECT_EQ(n.table.counts().moved, 3u);
  expect_clean(n);
}

TEST(request_table, a_deadline_ends_the_request_on_time) {
  auto n = mini_node::unified(1);
  auto r = make_request("a");
  r.deadline = n.now + std::chrono::seconds{1};
  n.submit(1, r);
  EXPECT_EQ(n.table.next_deadline(), r.deadline);
  n.now += std::chrono::milliseconds{999};
  n.tick();
  EXPECT_TRUE(n.outcomes[1].empty());
  n.now += std::chrono::milliseconds{1};
  n.tick();
  EXPECT_EQ(only_outcome(n, 1).kind, outcome_kind::cancelled);
  EXPECT_EQ(only_outcome(n, 1).reason, failure::deadline_exceeded);
  EXPECT_EQ(n.engine_aborts.size(), 1u);
  auto late = make_request("late");
  late.deadline = n.now;
  n.submit(2, late);
  EXPECT_EQ(only_outcome(n, 2).kind, outcome_kind::refused);
  expect_clean(n);
}

TEST(request_table, without_a_deadline_of_its_own_a_request_ends_after_the_nodes_limit) {
  request_table_options o;
  o.request_time_max = std::chrono::minutes{5};
  auto n = mini_node::unified(1, {}, o);
  n.submit(1, make_request("a"));
  n.now += std::chrono::minutes{5};
  n.tick();
  EXPECT_EQ(only_outcome(n, 1).reason, failure::deadline_exceeded);
  expect_clean(n);
}

TEST(request_table, the_end_of_the_node_ends_everything) {
  auto n = mini_node::unified(2);
  for (stream_id s = 1; s <= 5; ++s)
    n.submit(s, make_request("r" + std::to_string(s)));
  n.output(n.sent[0], 1);
  n.table.end_all(failure::shutting_down, n.now, n.fx);
  n.tick();
  for (stream_id s = 1; s <= 5; ++s)
    EXPECT_EQ(only_outcome(n, s).reason, failure::shutting_down);
  expect_clean(n);
}

TEST(request_table, a_restarted_controller_learns_what_is_placed_and_gets_the_orders_that_it_missed) {
  auto n = mini_node::unified(2);
  n.submit(1, make_request("placed", 100));
  n.submit(2, make_request("streaming", 200));
  n.output(n.leg_on(0, 1), 3);
  n.hold_orders();
  n.submit(3, make_request("waiting"));
  EXPECT_EQ(n.sent.size(), 2u);
  n.holding = false;
  n.restart_controller(0, 2);
  EXPECT_THAT(n.restored_lost, IsEmpty());
  EXPECT_EQ(n.sent.size(), 3u); // the third went out, nothing twice
  EXPECT_EQ(n.charges(), 3u);
  EXPECT_TRUE(n.controllers[0]->is_prefilled(n.sent[1].handle));
  EXPECT_FALSE(n.controllers[0]->is_prefilled(n.sent[0].handle));
  for (const auto& leg : std::vector<mini_node::sent_leg>(n.sent))
    n.output(leg, 1, finish_reason::stop);
  EXPECT_EQ(n.table.counts().completed, 3u);
  expect_clean(n);
}

TEST(request_table, an_abort_needs_no_controller) {
  auto n = mini_node::unified(2);
  n.submit(1, make_request("a"));
  n.hold_orders();
  n.cancel(1);
  EXPECT_EQ(n.aborts_of(n.sent[0].handle), 1u);
  n.holding = false;
  n.restart_controller(0, 2);
  EXPECT_EQ(n.aborts_of(n.sent[0].handle), 1u) << "the new controller is told of what is placed only";
  EXPECT_THAT(n.restored.legs, IsEmpty());
  expect_clean(n);
}

TEST(request_table, a_placement_that_comes_after_its_cancel_is_sent_nowhere) {
  auto n = mini_node::unified(1);
  n.hold_orders();
  n.submit(1, make_request("late"));
  const auto order = n.pending[0].places.at(0);
  n.pending[0] = {};
  const auto placed = std::get<placement>(n.controllers[0]->place(order, n.now));
  n.cancel(1); // its end stands behind the order
  n.table.on_placement(placed, n.now, n.fx);
  n.pump();
  EXPECT_THAT(n.sent, IsEmpty());
  EXPECT_THAT(n.engine_aborts, IsEmpty());
  expect_clean(n);
}

TEST(request_table, a_restarted_controller_of_a_pair_is_told_of_both_legs_and_neither_is_sent_again) {
  auto n = mini_node::pairs(2);
  n.submit(1, make_request("a"));
  ASSERT_EQ(n.sent.size(), 2u);
  n.restart_controller(1, 2);
  ASSERT_EQ(n.restored.legs.size(), 1u);
  EXPECT_EQ(n.restored.legs[0].rank, n.leg_on(1, 0).rank);
  EXPECT_EQ(n.sent.size(), 2u);
  n.output(n.leg_on(1, 0), 1, finish_reason::stop);
  expect_clean(n);
}

TEST(request_table, a_placement_of_a_controller_that_was_replaced_is_dropped_and_counted) {
  auto n = mini_node::unified(2);
  n.hold_orders();
  n.submit(1, make_request("a"));
  const auto order = n.pending[0].places.at(0);
  const auto old = std::get<placement>(n.controllers[0]->place(order, n.now)); // its answer is under way for long
  n.holding = false;
  n.restart_controller(0, 2);
  ASSERT_EQ(n.sent.size(), 1u);
  n.table.on_placement(old, n.now, n.fx);
  n.tick();
  EXPECT_EQ(n.sent.size(), 1u);
  EXPECT_EQ(n.table.counts().placements_of_old_terms, 1u);
  EXPECT_EQ(n.charges(), 1u);
  n.cancel(1);
  expect_clean(n);
}

TEST(request_table, a_placement_on_a_rank_that_went_down_meanwhile_moves_at_once) {
  auto n = mini_node::unified(2);
  n.hold_orders();
  n.submit(1, make_request("a"));
  const auto order = n.pending[0].places.at(0);
  n.pending[0] = {};
  const auto placed = std::get<placement>(n.controllers[0]->place(order, n.now));
  n.lose(placed.rank); // the owner hears of it before the placement
  n.table.on_placement(placed, n.now, n.fx);
  n.pump();
  ASSERT_EQ(n.sent.size(), 1u);
  EXPECT_NE(n.sent[0].rank, placed.rank);
  EXPECT_EQ(n.sent[0].attempt, 1u);
  n.cancel(1);
  expect_clean(n);
}

TEST(request_table, a_rank_that_is_back_tells_which_of_its_legs_were_sent_and_what_ran_before_is_lost) {
  auto n = mini_node::unified(1);
  n.submit(1, make_request("a"));
  EXPECT_THAT(n.table.on_rank_up({0, 0}, 1, n.now, n.fx),
              testing::ElementsAre(leg_id{n.sent[0].handle, n.sent[0].attempt}));
  n.output(n.sent[0], 1);
  EXPECT_THAT(n.table.on_rank_up({0, 0}, 2, n.now, n.fx), IsEmpty());
  n.tick();
  EXPECT_EQ(only_outcome(n, 1).reason, failure::rank_lost);
  n.running.clear(); // with the process
  expect_clean(n);
}

TEST(request_table, rows_tell_the_stage_of_each_request) {
  auto n = mini_node::unified(1);
  n.submit(1, make_request("a"));
  n.submit(2, make_request("b"));
  n.output(n.sent[1], 4);
  n.hold_orders();
  n.submit(3, make_request("c"));
  n.now += std::chrono::seconds{2};
  const auto rows = n.table.rows(n.now, 10);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].stage, "prefilling");
  EXPECT_EQ(rows[1].stage, "streaming");
  EXPECT_EQ(rows[1].completion_tokens, 4u);
  EXPECT_EQ(rows[2].stage, "placing");
  EXPECT_FALSE(rows[2].rank.has_value());
  EXPECT_DOUBLE_EQ(rows[0].age_s, 2.0);
  EXPECT_EQ(n.table.rows(n.now, 1).size(), 1u);
}

TEST(request_table, a_stream_of_which_tokens_never_arrived_ends_and_is_never_short) {
  for (const auto finish : {finish_reason::none, finish_reason::stop}) {
    auto n = mini_node::unified(2);
    n.submit(1, make_request("a"));
    n.output(n.sent[0], 2, finish_reason::none, 0, 2);
    n.output(n.sent[0], 1, finish, 0, 5); // two were lost on their way
    EXPECT_EQ(only_outcome(n, 1).kind, outcome_kind::failed);
    EXPECT_EQ(only_outcome(n, 1).reason, failure::tokens_lost);
    EXPECT_THAT(only_outcome(n, 1).text, HasSubstr("2 tokens of rank"));
    EXPECT_EQ(n.tokens[1], 2u) << "nothing behind the gap";
    EXPECT_EQ(n.finishes[1], 0u);
    EXPECT_EQ(n.table.counts().outputs_behind_a_gap, 1u);
    expect_clean(n);
  }
}

TEST(request_table, one_whose_first_tokens_were_lost_begins_anew) {
  auto n = mini_node::unified(2);
  n.submit(1, make_request("a"));
  n.output(n.sent[0], 1, finish_reason::none, 0, 2);
  EXPECT_TRUE(n.outcomes[1].empty());
  ASSERT_EQ(n.sent.size(), 2u);
  EXPECT_EQ(n.aborts_of(n.sent[0].handle), 1u);
  n.output(n.sent[1], 3, finish_reason::stop, 0, 3);
  EXPECT_EQ(n.tokens[1], 3u);
  expect_clean(n);
}

TEST(request_table, every_handle_names_its_owner_and_none_comes_again) {
  request_table_options o;
  o.owner = 77;
  auto n = mini_node::unified(1, {}, o);
  std::set<request_handle> seen;
  for (stream_id id = 1; id <= 100; ++id) {
    n.submit(id, make_request("r" + std::to_string(id)));
    EXPECT_EQ(owner_of(n.sent.back().handle), 77);
    EXPECT_TRUE(seen.insert(n.sent.back().handle).second);
    n.cancel(id);
  }
  EXPECT_EQ(slot_of(n.sent.back().handle), slot_of(n.sent.front().handle)) << "the slot is the same all the time";
  expect_clean(n);
}

// A long random life: whatever happens, requests are conserved, the history is right and nothing stays charged.
void soak(mini_node& n, bool pair, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const auto below = [&](std::uint64_t m) { return random() % m; };
  stream_id next = 1;
  std::map<rank_id, rank_epoch> epochs;
  const std::uint16_t pools = pair ? 2 : 1;
  const std::uint16_t ranks = 3;
  for (int step = 0; step < 6000; ++step) {
    n.now += std::chrono::milliseconds{below(20)};
    const auto what = below(100);
    if (what < 30) {
      auto r = make_request("r" + std::to_string(below(4) == 0 ? below(next) : next), 1 + below(3000));
      r.samples = static_cast<std::uint32_t>(1 + below(3));
      if (below(10) == 0)
        r.deadline = n.now + std::chrono::milliseconds{below(200)};
      if (below(10) == 0)
        r.data_parallel_rank = static_cast<std::int32_t>(below(4));
      n.submit(next++, r);
    } else if (what < 80 && !n.sent.empty()) {
      // Mostly living legs, sometimes a word of one that ended long ago.
      const auto recent = std::min<std::size_t>(n.sent.size(), 40);
      const auto leg = n.sent[n.sent.size() - 1 - below(recent)];
      const auto f = below(10);
      n.output(leg, static_cast<std::uint32_t>(below(4)),
               f < 6   ? finish_reason::none
               : f < 9 ? finish_reason::stop
                       : finish_reason::abort);
    } else if (what < 88) {
      n.cancel(1 + below(next));
    } else if (what < 92) {
      n.tick();
    } else if (what < 95) {
      const rank_id id{static_cast<std::uint16_t>(below(pools)), static_cast<std::uint16_t>(below(ranks))};
      auto& epoch = epochs.try_emplace(id, 1).first->second;
      n.lose(id, epoch);
      n.replace(id, ++epoch, ranks);
    } else if (what < 97) {
      const rank_id id{0, static_cast<std::uint16_t>(below(ranks))};
      n.controllers[0]->report(test::report_of(id.rank, static_cast<std::uint64_t>(step), n.now,
                                               below(test::kv_capacity), epochs.try_emplace(id, 1).first->second));
    } else if (what < 98) {
      n.queues_full = !n.queues_full && below(2) == 0;
    }
    const auto& c = n.table.counts();
    ASSERT_EQ(c.accepted, c.completed + c.failed + c.cancelled + c.in_flight());
    ASSERT_EQ(c.submitted, c.accepted + c.refused); // nothing waits between two steps
    ASSERT_EQ(c.in_flight(), n.table.open_streams());
    for (const auto& controller : n.controllers)
      for (std::uint16_t r = 0; r < ranks; ++r)
        ASSERT_LT(controller->figures(r, n.now).placed_tokens, 1ull << 40); // never below 0
  }
  n.queues_full = false;
  n.table.end_all(failure::shutting_down, n.now, n.fx);
  n.tick();
  const auto& c = n.table.counts();
  std::uint64_t outcomes = 0;
  for (const auto& [stream, list] : n.outcomes) {
    EXPECT_EQ(list.size(), 1u) << stream;
    outcomes += list.size();
  }
  EXPECT_EQ(c.submitted, next - 1);
  EXPECT_EQ(outcomes + c.completed, c.submitted);
  EXPECT_GT(c.completed, 40u);
  EXPECT_GT(c.failed, 10u);
  EXPECT_GT(c.cancelled, 10u);
  EXPECT_GT(c.moved, 10u);
  expect_clean(n);
  for (const auto& controller : n.controllers)
    for (std::uint16_t r = 0; r < ranks; ++r) {
      const auto f = controller->figures(r, n.now);
      EXPECT_EQ(f.requests, 0u);
      EXPECT_EQ(f.placed_tokens, 0u);
      EXPECT_EQ(f.prefill_tokens, 0u);
    }
}

TEST(request_table, a_random_life_conserves_requests) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    auto n = mini_node::unified(3);
    soak(n, false, seed);
  }
}

TEST(request_table, a_random_life_of_pairs_conserves_requests) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    auto n = mini_node::pairs(3);
    soak(n, true, seed);
  }
}

} // namespace
} // namespace rankwise::core
