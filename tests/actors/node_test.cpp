#include "tests/actors/node_fixture.hpp"

#include <set>

namespace rankwise {
namespace {

using namespace std::chrono_literals;
using core::finish_reason;
using core::frame_kind;
using test::node;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(node, a_request_runs_from_submission_to_completion) {
  start();
  submit(1, "a");
  const auto sent = only_add("a");
  EXPECT_EQ(sent.rank, (core::rank_id{0, 0}));
  EXPECT_EQ(sent.epoch, 1u);
  EXPECT_EQ(pool().charges, 1u);
  output(sent, {10, 11});
  output(sent, {12}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[1], ElementsAre(10, 11, 12));
  EXPECT_EQ(sink.finished[1], 1);
  EXPECT_THAT(sink.outcomes[1], IsEmpty());
  EXPECT_EQ(counts().completed, 1u);
  EXPECT_EQ(pool().charges, 0u);
  EXPECT_EQ(frames(frame_kind::abort), 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_cancel_sends_exactly_one_abort_and_releases_the_charge_once) {
  start();
  submit(1, "a");
  output(only_add("a"), {10});
  for (int i = 0; i < 2; ++i) {
    caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
    caf::anon_send(directory->manager_for(0).handle, abort_request{"a"});
    settle();
  }
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].kind, core::outcome_kind::cancelled);
  EXPECT_EQ(pool().charges, 0u);
  EXPECT_EQ(pool().counts.charges_ended, 1u);
  EXPECT_EQ(pool().counts.ends_of_unknown_charges, 0u);
}

TEST_F(node, a_deadline_is_kept_in_virtual_time) {
  start();
  core::generate_request r;
  r.rid = "a";
  r.input_ids = {1};
  r.deadline = now() + 1s;
  caf::anon_send(directory->manager_for(0).handle,
                 submit_request{1, std::make_shared<const core::generate_request>(r)});
  advance(980ms);
  EXPECT_THAT(sink.outcomes[1], IsEmpty());
  advance(40ms);
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].reason, core::failure::deadline_exceeded);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
}

TEST_F(node, the_ranks_of_the_pool_are_those_that_registered) {
  start(0);
  EXPECT_EQ(pool().dp_size, 1u);
  join(1, 1, 4);
  EXPECT_EQ(pool().dp_size, 4u);
  EXPECT_EQ(pool().ranks_up, 1u);
}

TEST_F(node, a_rank_whose_layout_lacks_a_field_is_refused) {
  start(0);
  say(event(link_event_kind::hello, 0, 1));
  auto e = event(link_event_kind::registered, 0, 1);
  std::erase(e.layouts["TokenizedGenerateReqInput"], "input_ids");
  say(e);
  EXPECT_EQ(pool().ranks_up, 0u);
  EXPECT_THAT(link.closed, ElementsAre(core::rank_id{0, 0}));
}

TEST_F(node, a_rank_that_said_hello_and_does_not_register_is_down_in_time_and_may_begin_anew) {
  timing.registration_max = 2s;
  start(1);
  const auto last_cause = [&] { return events_of("rank_state").back().cause; };
  say(event(link_event_kind::hello, 1, 1));
  advance(1s);
  say(event(link_event_kind::hello, 1, 2)); // its time counts anew
  advance(1500ms);
  EXPECT_THAT(link.closed, IsEmpty());
  advance(600ms);
  EXPECT_EQ(last_cause(), "did not register within 2 s");
  EXPECT_EQ(events_of("rank_state").back().change, "joining -> down, epoch 2");
  ASSERT_EQ(link.closed.size(), 1u);
  EXPECT_EQ(link.closed[0].rank, 1);
  join(1, 3, 2);
  EXPECT_EQ(state_of_rank(1), core::rank_state::ready);
  advance(5s);
  EXPECT_EQ(state_of_rank(1), core::rank_state::ready);
  EXPECT_EQ(link.closed.size(), 1u);
}

TEST_F(node, a_rank_whose_actor_is_restarted_before_it_registers_still_has_to_do_so_in_time) {
  timing.registration_max = 2s;
  start(1);
  say(event(link_event_kind::hello, 1, 1));
  crash("dp_rank", {0, 1});
  advance(3s);
  EXPECT_EQ(events_of("rank_state").back().cause, "did not register within 2 s");
  EXPECT_EQ(link.closed.size(), 1u);
}

TEST_F(node, a_full_queue_moves_the_request_and_at_last_fails_it) {
  start(2);
  link.result = core::send_result::queue_full_requests;
  submit(1, "a");
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].reason, core::failure::rank_queue_full);
  EXPECT_EQ(pool().counts.placed, 4u);
  EXPECT_EQ(pool().charges, 0u);
}

TEST_F(node, an_order_for_a_link_that_is_gone_moves_and_at_last_says_that_no_rank_took_it) {
  start(2);
  link.result = core::send_result::unknown_link;
  submit(1, "a");
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].reason, core::failure::no_rank_available);
  EXPECT_THAT(sink.outcomes[1][0].text, testing::HasSubstr("has lost its link of epoch 1"));
  EXPECT_EQ(pool().charges, 0u);
}

TEST_F(node, a_lost_rank_moves_what_has_no_token_and_ends_what_has) {
  start(2);
  submit(1, "waits", 0);
  submit(2, "streams", 0);
  output(only_add("streams"), {1});
  submit(3, "unpinned");
  const auto before = only_add("unpinned");
  say(event(link_event_kind::lost, before.rank.rank, 1));
  ASSERT_EQ(adds_of("unpinned").size(), 2u);
  EXPECT_NE(adds_of("unpinned")[1].rank, before.rank);
  if (before.rank.rank != 0)
    say(event(link_event_kind::lost, 0, 1));
  ASSERT_EQ(sink.outcomes[2].size(), 1u);
  EXPECT_EQ(sink.outcomes[2][0].reason, core::failure::rank_lost);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_drained_rank_ends_its_streams_gets_none_and_says_so) {
  start(2);
  submit(1, "old", 0);
  const auto old = only_add("old");
  output(old, {1});
  const auto draining = wish(0, rank_wish::drain, 10s);
  EXPECT_TRUE(draining.done);
  EXPECT_EQ(draining.state, core::rank_state::draining);
  for (int i = 0; i < 10; ++i) {
    submit(static_cast<core::stream_id>(10 + i), "new" + std::to_string(i));
    EXPECT_EQ(only_add("new" + std::to_string(i)).rank.rank, 1);
  }
  advance(1s);
  EXPECT_EQ(state_of_rank(0), core::rank_state::draining);
  output(old, {2}, core::finish_reason::length);
  advance(300ms);
  EXPECT_EQ(state_of_rank(0), core::rank_state::drained);
  EXPECT_EQ(pool().ranks.at(0).drain_cut, 0u);
  EXPECT_EQ(sink.finished[1], 1);
  EXPECT_TRUE(wish(0, rank_wish::undrain).done);
  EXPECT_EQ(state_of_rank(0), core::rank_state::ready);
  submit(2, "again", 0);
  EXPECT_EQ(only_add("again").rank.rank, 0);
  EXPECT_FALSE(wish(0, rank_wish::undrain).done);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, at_the_deadline_of_a_drain_what_is_left_moves_or_fails_and_is_aborted) {
  start(2);
  submit(1, "streams", 0);
  output(only_add("streams"), {1});
  submit(2, "waits");
  submit(3, "waits_too");
  wish(0, rank_wish::drain, 2s);
  const auto on_it = pool().ranks.at(0).requests;
  ASSERT_GE(on_it, 1u);
  advance(3s);
  EXPECT_EQ(state_of_rank(0), core::rank_state::drained);
  EXPECT_EQ(pool().ranks.at(0).drain_cut, on_it);
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].reason, core::failure::rank_lost);
  for (const auto* rid : {"waits", "waits_too"})
    EXPECT_EQ(adds_of(rid).back().rank.rank, 1);
  EXPECT_GE(frames(core::frame_kind::abort), 1u);
  EXPECT_TRUE(wish(0, rank_wish::undrain).done);
  EXPECT_EQ(pool().ranks.at(0).drain_cut, 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_drain_outlives_crashes_of_the_rank_actor_and_of_the_controller) {
  start(2);
  wish(0, rank_wish::drain, 10s);
  advance(300ms);
  ASSERT_EQ(state_of_rank(0), core::rank_state::drained);
  crash("dp_rank", {0, 0});
  advance(1s);
  crash("dp_controller");
  advance(1s);
  EXPECT_EQ(state_of_rank(0), core::rank_state::drained);
  submit(1, "a");
  submit(2, "b");
  EXPECT_EQ(only_add("a").rank.rank, 1);
  EXPECT_EQ(only_add("b").rank.rank, 1);
  join(0, 2, 2); // a new process is what one drains for
  EXPECT_EQ(state_of_rank(0), core::rank_state::ready);
}

// 24. smg#2521
TEST_F(node, a_rank_is_removed_when_it_is_empty_or_by_force_and_what_is_not_there_is_an_error) {
  start(3);
  EXPECT_FALSE(wish(9, rank_wish::remove).known);
  EXPECT_FALSE(wish(0, rank_wish::remove).done) << "it is ready";
  wish(0, rank_wish::drain, 10s);
  advance(300ms);
  EXPECT_TRUE(wish(0, rank_wish::remove).done);
  submit(1, "streams", 1);
  output(only_add("streams"), {1});
  EXPECT_TRUE(wish(1, rank_wish::remove, 0s, true).done);
  advance(100ms);
  EXPECT_EQ(sink.outcomes[1].at(0).reason, core::failure::rank_lost);
  EXPECT_EQ(pool().ranks.size(), 1u);
  EXPECT_EQ(link.closed.size(), 2u);
  EXPECT_FALSE(wish(0, rank_wish::drain).known);
  join(0, 2, 3);
  EXPECT_EQ(state_of_rank(0), core::rank_state::ready);
}

TEST_F(node, a_restored_rank_serves_once_it_reconnects) {
  start(1);
  auto known = event(link_event_kind::registered, 4, 7, 8);
  known.kind = link_event_kind::restored;
  say(known);
  submit(1, "early", 4);
  EXPECT_EQ(adds_of("early").size(), 0u);
  say(event(link_event_kind::reconnected, 4, 8));
  submit(2, "late", 4);
  EXPECT_EQ(only_add("late").epoch, 8u);
  crash("dp_rank", {0, 4});
  advance(1s);
  submit(3, "later", 4);
  EXPECT_EQ(only_add("later").epoch, 8u);
}

TEST_F(node, the_end_of_an_ejection_is_an_event_once_the_rank_gets_work_again) {
  start(2);
  for (core::stream_id i = 1; i <= 5; ++i) {
    submit(i, "e" + std::to_string(i), 0);
    output(only_add("e" + std::to_string(i)), {}, core::finish_reason::abort);
  }
  ASSERT_EQ(events_of("rank_ejected").size(), 1u);
  ASSERT_TRUE(pool().ranks.at(0).ejected);
  advance(4s);
  EXPECT_THAT(events_of("rank_ejection_over"), IsEmpty());
  advance(2s);
  const auto over = events_of("rank_ejection_over");
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].subject, "unified/0");
  EXPECT_EQ(over[0].change, "gets work again");
  EXPECT_FALSE(pool().ranks.at(0).ejected);
  advance(5s);
  EXPECT_EQ(events_of("rank_ejection_over").size(), 1u);
}

TEST_F(node, a_rank_that_is_down_when_its_ejection_ends_gets_work_again_with_its_next_epoch) {
  start(2);
  for (core::stream_id i = 1; i <= 5; ++i) {
    submit(i, "e" + std::to_string(i), 0);
    output(only_add("e" + std::to_string(i)), {}, core::finish_reason::abort);
  }
  say(event(link_event_kind::lost, 0, 1));
  advance(10s);
  EXPECT_THAT(events_of("rank_ejection_over"), IsEmpty());
  join(0, 2, 2);
  advance(300ms);
  const auto over = events_of("rank_ejection_over");
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].cause, "a new incarnation took its place");
}

TEST_F(node, an_engine_that_hangs_behind_a_living_link_is_given_up) {
  start(2);
  submit(1, "hangs", 0);
  advance(14s);
  EXPECT_EQ(state_of_rank(0), core::rank_state::suspect);
  EXPECT_THAT(link.given_up, IsEmpty());
  advance(2s);
  EXPECT_EQ(link.given_up.size(), 1u);
}

TEST_F(node, a_full_pool_lets_requests_wait_in_order_and_refuses_what_has_no_place_to_wait) {
  core::pool_options pool_options;
  pool_options.requests_in_flight_max = 1;
  pool_options.waiting_requests_max = 2;
  start(2, pool_options);
  for (const auto& [stream, rid] : std::map<int, std::string>{{1, "runs"}, {2, "first"}, {3, "second"}, {4, "refused"}})
    submit(static_cast<core::stream_id>(stream), rid);
  EXPECT_EQ(adds_of("first").size() + adds_of("second").size(), 0u);
  EXPECT_EQ(pool().waiting, 2u);
  EXPECT_EQ(sink.outcomes[4].at(0).reason, core::failure::requests_in_flight_max);
  output(only_add("runs"), {1}, core::finish_reason::stop);
  EXPECT_EQ(adds_of("first").size(), 1u);
  EXPECT_EQ(adds_of("second").size(), 0u);
  submit(5, "third");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{3, core::failure::client_cancelled});
  settle();
  output(only_add("first"), {1}, core::finish_reason::stop);
  EXPECT_EQ(adds_of("second").size(), 0u) << "it was cancelled while it waited";
  EXPECT_EQ(adds_of("third").size(), 1u);
  EXPECT_EQ(frames(core::frame_kind::abort), 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, of_those_who_wait_for_room_the_higher_class_goes_first) {
  core::pool_options pool_options;
  pool_options.requests_in_flight_max = 1;
  start(1, pool_options);
  submit(1, "runs");
  submit(2, "low", {}, -1);
  submit(3, "plain");
  submit(4, "high", {}, 2);
  for (const char* ends : {"runs", "high", "plain", "low"})
    output(only_add(ends), {1}, core::finish_reason::stop);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, where_all_places_to_wait_are_taken_a_higher_class_takes_that_of_a_lower_one) {
  core::pool_options pool_options;
  pool_options.requests_in_flight_max = 1;
  pool_options.waiting_requests_max = 2;
  start(1, pool_options);
  submit(1, "runs");
  submit(2, "low", {}, -1);
  submit(3, "lower", {}, -2);
  submit(4, "high", {}, 2);
  ASSERT_EQ(sink.outcomes[3].size(), 1u);
  EXPECT_EQ(sink.outcomes[3][0].reason, core::failure::requests_in_flight_max);
  submit(5, "lower too", {}, -2);
  EXPECT_EQ(sink.outcomes[5].size(), 1u) << "nobody lower waits";
  for (const char* ends : {"runs", "high", "low"})
    output(only_add(ends), {1}, core::finish_reason::stop);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, one_that_loses_its_place_to_a_higher_class_does_not_pass_those_who_wait_before_it) {
  core::pool_options pool_options;
  pool_options.tokens_in_flight_max = 150;
  pool_options.waiting_requests_max = 2;
  start(1, pool_options);
  submit(1, "runs", {}, 0, 80);
  submit(2, "large", {}, 0, 90);
  submit(3, "small", {}, -1, 5); // there is room for it, but it is not its turn
  submit(4, "high", {}, 2, 90);
  EXPECT_THAT(adds_of("small"), IsEmpty());
  ASSERT_EQ(sink.outcomes[3].size(), 1u);
  EXPECT_EQ(sink.outcomes[3][0].kind, core::outcome_kind::refused);
  EXPECT_EQ(sink.outcomes[3][0].reason, core::failure::tokens_in_flight_max);
  EXPECT_THAT(sink.outcomes[3][0].text, HasSubstr("a higher priority than -1"));
  for (const char* ends : {"runs", "high", "large"})
    output(only_add(ends), {1}, core::finish_reason::stop);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_small_one_that_finds_no_place_to_wait_does_not_pass_those_who_wait_for_room) {
  core::pool_options pool_options;
  pool_options.tokens_in_flight_max = 150;
  pool_options.waiting_requests_max = 1;
  pool_options.policy = "round_robin"; // which knows no work: in order of arrival
  start(1, pool_options);
  submit(1, "runs", {}, 0, 80);
  submit(2, "large", {}, 0, 90);
  submit(3, "small", {}, 0, 5);
  EXPECT_THAT(adds_of("small"), IsEmpty());
  ASSERT_EQ(sink.outcomes[3].size(), 1u);
  EXPECT_EQ(sink.outcomes[3][0].kind, core::outcome_kind::refused);
  EXPECT_EQ(sink.outcomes[3][0].reason, core::failure::tokens_in_flight_max);
  EXPECT_THAT(sink.outcomes[3][0].text, HasSubstr("its 1 places to wait are taken"));
  for (const char* ends : {"runs", "large"})
    output(only_add(ends), {1}, core::finish_reason::stop);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, one_that_lost_its_rank_had_its_turn_and_needs_no_place_to_wait) {
  core::pool_options pool_options;
  pool_options.tokens_in_flight_max = 150;
  pool_options.waiting_requests_max = 1;
  pool_options.policy = "round_robin"; // which knows no work: in order of arrival
  start(2, pool_options);
  submit(1, "moves", {}, 0, 5);
  submit(2, "runs", {}, 0, 80);
  submit(3, "large", {}, 0, 90);
  const auto before = only_add("moves").rank.rank;
  ASSERT_NE(only_add("runs").rank.rank, before);
  say(event(link_event_kind::lost, before, 1));
  ASSERT_EQ(adds_of("moves").size(), 2u);
  EXPECT_THAT(adds_of("large"), IsEmpty());
  output(adds_of("moves").back(), {1}, core::finish_reason::stop);
  for (const char* ends : {"runs", "large"})
    output(only_add(ends), {1}, core::finish_reason::stop);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_higher_class_that_may_not_pass_one_whose_patience_is_over_takes_the_place_of_a_lower_one) {
  core::pool_options pool_options;
  pool_options.tokens_in_flight_max = 150;
  pool_options.waiting_requests_max = 2;
  start(1, pool_options);
  submit(1, "runs", {}, 0, 80);
  submit(2, "large", {}, 0, 90);
  submit(3, "low", {}, -1, 5);
  advance(1s); // the patience of "large" is over, not that of "low", which is four times as long
  submit(4, "high", {}, 2, 5);
  ASSERT_EQ(sink.outcomes[3].size(), 1u);
  EXPECT_THAT(sink.outcomes[3][0].text, HasSubstr("a higher priority than -1"));
  EXPECT_THAT(adds_of("high"), IsEmpty());
  EXPECT_THAT(sink.outcomes[4], IsEmpty());
  for (const char* ends : {"runs", "large", "high"})
    output(only_add(ends), {1}, core::finish_reason::stop);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, where_all_wait_for_a_rank_and_no_place_is_left_the_next_of_them_is_sent_and_the_new_one_waits) {
  core::pool_options pool_options;
  pool_options.waiting_requests_max = 2;
  start(1, pool_options);
  core::stream_id stream = 0;
  while (pool().waiting < 2) {
    ++stream;
    ASSERT_LT(stream, 5000u) << "nobody waits";
    submit(stream, "r" + std::to_string(stream), {}, 0, 1000);
  }
  const auto first = "r" + std::to_string(stream - 1);
  const auto second = "r" + std::to_string(stream);
  ASSERT_THAT(adds_of(first), IsEmpty());
  submit(stream + 1, "new", {}, 0, 1000);
  EXPECT_EQ(adds_of(first).size(), 1u);
  EXPECT_THAT(adds_of(second), IsEmpty());
  EXPECT_THAT(adds_of("new"), IsEmpty());
  EXPECT_EQ(pool().waiting, 2u);
  submit(stream + 2, "high", {}, 1, 1000);
  EXPECT_EQ(adds_of("high").size(), 1u) << "it is the next of all";
  EXPECT_THAT(adds_of(second), IsEmpty());
  EXPECT_EQ(pool().waiting, 2u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_pair_gets_its_decode_rank_when_it_has_one_that_prefills_and_neither_is_told_before) {
  core::pool_options prefill;
  prefill.requests_in_flight_max = 1;
  start_pair(prefill);
  submit(1, "runs");
  ASSERT_EQ(adds_of("runs").size(), 2u);
  submit(2, "waits");
  submit(3, "gives up");
  EXPECT_THAT(adds_of("waits"), IsEmpty());
  EXPECT_EQ(pool(1).charges, 1u) << "nothing is charged to a decode rank meanwhile";
  caf::anon_send(directory->manager_for(0).handle, cancel_request{3, core::failure::client_cancelled});
  settle();
  for (const auto& leg : adds_of("runs"))
    output(leg, {1}, core::finish_reason::stop);
  ASSERT_EQ(adds_of("waits").size(), 2u);
  EXPECT_THAT(adds_of("gives up"), IsEmpty());
  for (const auto& leg : adds_of("waits"))
    output(leg, {1}, core::finish_reason::stop);
  EXPECT_EQ(sink.tokens[2].size(), 1u);
  EXPECT_EQ(pool(0).charges + pool(1).charges, 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_request_waits_for_room_no_longer_than_the_pool_allows) {
  core::pool_options pool_options;
  pool_options.requests_in_flight_max = 1;
  pool_options.waiting_time_max = 2s;
  start(1, pool_options);
  submit(1, "runs");
  submit(2, "waits");
  advance(1900ms);
  EXPECT_TRUE(sink.outcomes[2].empty());
  advance(400ms);
  ASSERT_EQ(sink.outcomes[2].size(), 1u);
  EXPECT_EQ(sink.outcomes[2][0].kind, core::outcome_kind::refused);
}

TEST_F(node, why_a_request_went_where_it_went_is_told_with_what_was_compared) {
  start(2);
  submit(1, "free");
  submit(2, "pinned", 1);
  const auto free = ask<placement_list>(directory->introspector(), placement_query{"free"});
  ASSERT_EQ(free.records.size(), 1u);
  EXPECT_EQ(free.records[0].rank, only_add("free").rank.rank);
  EXPECT_EQ(free.records[0].rule, "policy headroom");
  ASSERT_EQ(free.records[0].candidates.size(), 2u);
  EXPECT_TRUE(free.records[0].candidates[0].score.has_value());
  const auto pinned = ask<placement_list>(directory->introspector(), placement_query{"pinned"});
  ASSERT_EQ(pinned.records.size(), 1u);
  EXPECT_EQ(pinned.records[0].rule, "data_parallel_rank");
}

TEST_F(node, why_names_the_pool_whose_controller_is_away_instead_of_knowing_nothing) {
  start(1);
  submit(1, "a");
  EXPECT_THAT(ask<placement_list>(directory->introspector(), placement_query{"a"}).silent, IsEmpty());
  crash("dp_controller");
  const auto away = ask<placement_list>(directory->introspector(), placement_query{"a"});
  EXPECT_THAT(away.silent, testing::ElementsAre("unified"));
  EXPECT_THAT(away.records, IsEmpty());
}

TEST_F(node, why_shows_what_others_answer_beside_a_controller_that_is_not_in_time) {
  start(1);
  submit(1, "a");
  auto rows = children();
  std::erase_if(rows.children, [](const child_row& c) { return c.status.role != "dp_controller"; });
  // CAF 0.17 refers to the tuple of arguments even when there is none, which UndefinedBehaviorSanitizer reports.
  const auto mute = system.spawn(
      [](caf::event_based_actor* actor, int) -> caf::behavior {
        actor->set_default_handler(caf::skip);
        return {[](wake_atom) {}};
      },
      0);
  rows.children.push_back(rows.children.at(0));
  rows.children[1].status.name = "decode";
  rows.children[1].handle = caf::actor_cast<caf::strong_actor_ptr>(mute);
  const auto root = system.spawn(
      [rows](caf::event_based_actor*, int) -> caf::behavior { return {[=](list_atom) { return rows; }}; }, 0);
  introspector_config c;
  c.directory = std::make_shared<actor_directory>();
  c.directory->set(caf::actor_cast<supervisor_actor>(root));
  const auto asked = system.spawn(introspector, c);
  caf::scoped_actor self{system};
  auto pending = self->request(asked, caf::infinite, placement_query{"a"});
  settle();
  advance(c.answer_max);
  pending.receive(
      [](const placement_list& found) {
        EXPECT_EQ(found.records.size(), 1u);
        EXPECT_THAT(found.silent, testing::ElementsAre("decode"));
      },
      [&](const caf::error& e) { ADD_FAILURE() << system.render(e); });
  caf::anon_send_exit(mute, caf::exit_reason::kill);
  caf::anon_send_exit(root, caf::exit_reason::kill);
  caf::anon_send_exit(asked, caf::exit_reason::kill);
  settle();
  c.directory->clear();
}

TEST_F(node, a_policy_that_was_set_outlives_its_controller) {
  start(2);
  const auto changed = ask<policy_change_result>(anon_supervisor, policy_change{0, "round_robin"});
  EXPECT_TRUE(changed.done);
  EXPECT_EQ(changed.before, "headroom");
  EXPECT_EQ(pool().policy, "round_robin");
  crash("dp_controller");
  advance(1s);
  EXPECT_EQ(pool().policy, "round_robin");
}

// 5. sglang#25142
TEST_F(node, after_100000_stale_reports_the_next_placement_uses_the_fresh_one) {
  start(2);
  submit(1, "a", 0);
  submit(2, "b", 1);
  for (std::uint64_t i = 1; i <= 100'000; ++i)
    report(0, i, 10);
  report(0, 100'001, 900'000);
  settle();
  submit(3, "c");
  EXPECT_EQ(only_add("c").rank.rank, 1);
  EXPECT_EQ(pool().ranks[0].reported_kv_used, 900'000u);
  EXPECT_LE(pool().counts.reports[0], 2u); // they were coalesced
}

TEST_F(node, a_crashed_load_forwarder_comes_back_and_brings_the_newest_report) {
  start();
  const auto before = directory->load_forwarder();
  crash("load_forwarder");
  EXPECT_EQ(child("load_forwarder").state, "restarting");
  EXPECT_THAT(child("load_forwarder").last_error, HasSubstr("injected crash"));
  report(0, 1, 100); // its wake-up dies with the crashed one
  report(0, 2, 200);
  settle();
  EXPECT_FALSE(pool().ranks[0].reported);
  advance(6ms); // the backoff is 8 to 12 ms
  EXPECT_EQ(child("load_forwarder").state, "restarting");
  advance(8ms);
  EXPECT_EQ(child("load_forwarder").state, "running");
  EXPECT_NE(directory->load_forwarder(), before);
  EXPECT_EQ(pool().ranks[0].reported_kv_used, 200u);
  report(0, 3, 300);
  settle();
  EXPECT_EQ(pool().ranks[0].reported_kv_used, 300u);
}

TEST_F(node, a_load_forwarder_that_crashes_six_times_is_parked_and_outputs_still_flow) {
  start();
  submit(1, "a");
  const auto sent = only_add("a");
  for (int i = 0; i < 5; ++i) {
    crash("load_forwarder");
    advance(500ms);
    ASSERT_EQ(child("load_forwarder").state, "running") << i;
  }
  crash("load_forwarder");
  EXPECT_TRUE(child("load_forwarder").parked);
  EXPECT_TRUE(children().degraded);
  EXPECT_THAT(children().degraded_reason, HasSubstr("load_forwarder"));
  report(0, 1, 100);
  output(sent, {1});
  submit(2, "b"); // placed by the ledger alone
  output(only_add("b"), {5}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[1], ElementsAre(1));
  EXPECT_EQ(sink.finished[2], 1);
  advance(29'900ms);
  EXPECT_TRUE(child("load_forwarder").parked);
  advance(200ms);
  EXPECT_FALSE(child("load_forwarder").parked);
  EXPECT_FALSE(children().degraded);
  EXPECT_EQ(pool().ranks[0].reported_kv_used, 100u);
  EXPECT_THAT(fatal, IsEmpty());
}

TEST_F(node, a_crashed_controller_rebuilds_its_ledger_and_nothing_is_lost_or_placed_twice) {
  start(2);
  submit(1, "placed");
  submit(2, "streams");
  output(only_add("streams"), {1});
  crash("dp_controller");
  submit(3, "waits"); // while there is no controller
  output(only_add("streams"), {2});
  advance(1s);
  EXPECT_EQ(pool().charges, 3u);
  EXPECT_EQ(pool().ranks_up, 2u);
  for (const std::string rid : {"placed", "streams", "waits"})
    output(only_add(rid), {9}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[2], ElementsAre(1, 2, 9));
  EXPECT_EQ(counts().completed, 3u);
  EXPECT_EQ(counts().moved, 0u);
  EXPECT_EQ(pool().charges, 0u);
  EXPECT_EQ(frames(frame_kind::abort), 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_cancel_while_the_controller_is_away_still_reaches_the_engine_once) {
  start();
  submit(1, "a");
  submit(2, "stays");
  output(only_add("a"), {1});
  crash("dp_controller");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  settle();
  EXPECT_EQ(frames(frame_kind::abort), 1u) << "at once: it goes from its owner to the rank";
  advance(1s);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_THAT(link.frames.back().payload, HasSubstr("a~"));
  EXPECT_EQ(pool().charges, 1u);
  crash("dp_controller");
  advance(1s);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

// 20. a frozen peer comes back
TEST_F(node, what_a_lost_rank_ran_is_aborted_before_it_gets_work_again) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  say(event(link_event_kind::lost, 0, 1));
  EXPECT_EQ(sink.outcomes[1].at(0).reason, core::failure::rank_lost);
  EXPECT_EQ(frames(frame_kind::abort), 0u); // there is nobody to send it to
  say(event(link_event_kind::reconnected, 0, 2));
  submit(2, "b");
  ASSERT_EQ(link.frames.size(), 3u);
  EXPECT_EQ(link.frames[1].kind, frame_kind::abort);
  EXPECT_EQ(link.frames[1].epoch, 2u);
  EXPECT_THAT(link.frames[1].payload, HasSubstr("a~"));
  EXPECT_EQ(link.frames[2].kind, frame_kind::add);
}

TEST_F(node, a_first_token_that_comes_while_the_controller_settles_is_not_forgotten) {
  start();
  submit(1, "a");
  const auto sent = only_add("a");
  crash("dp_rank");
  crash("dp_controller");
  output(sent, {1});
  advance(1s);
  EXPECT_EQ(adds_of("a").size(), 1u); // it plainly reached the engine
  output(sent, {2}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[1], ElementsAre(1, 2));
  EXPECT_EQ(counts().completed, 1u);
  EXPECT_EQ(pool().charges, 0u);
  EXPECT_EQ(frames(frame_kind::abort), 0u);
}

TEST_F(node, an_abort_while_the_rank_actor_restarts_reaches_the_engine_once) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  crash("dp_rank");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  settle();
  EXPECT_EQ(frames(frame_kind::abort), 0u);
  advance(1s);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_EQ(pool().charges, 0u);
}

TEST_F(node, an_abort_that_waits_for_a_rank_actor_survives_the_controller) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  for (int i = 0; i < 2; ++i) { // so that the rank's backoff is longer than the controller's
    crash("dp_rank");
    advance(100ms);
  }
  crash("dp_rank");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  settle();
  crash("dp_controller");
  advance(1s);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_EQ(pool().charges, 0u);
}

TEST_F(node, an_abort_sent_into_a_broken_link_is_sent_again_when_it_is_back) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  settle();
  EXPECT_EQ(frames(frame_kind::abort), 1u); // but the link was cut already, and nobody knew
  say(event(link_event_kind::lost, 0, 1));
  say(event(link_event_kind::reconnected, 0, 2));
  ASSERT_EQ(frames(frame_kind::abort), 2u);
  EXPECT_EQ(link.frames.back().epoch, 2u);
  EXPECT_THAT(link.frames.back().payload, HasSubstr("a~"));
  say(event(link_event_kind::lost, 0, 2));
  advance(6s);
  join(0, 3); // a new process knows nothing of it
  EXPECT_EQ(frames(frame_kind::abort), 2u);
}

TEST_F(node, what_a_lost_rank_ran_is_aborted_even_if_its_actor_crashes_meanwhile) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  say(event(link_event_kind::lost, 0, 1));
  link.result = core::send_result::unknown_link;
  crash("dp_rank");
  advance(100ms);
  link.result = core::send_result::queued;
  say(event(link_event_kind::reconnected, 0, 2));
  EXPECT_EQ(frames(frame_kind::abort), 1u);
}

TEST_F(node, what_a_rank_ran_that_went_down_without_a_controller_outlives_the_next_controller_too) {
  start();
  crash("dp_rank"); // some time ago: no reason to take its successor for dead
  advance(100ms);
  submit(1, "a");
  output(only_add("a"), {1});
  crash("dp_controller");
  say(event(link_event_kind::lost, 0, 1));
  advance(1s);
  EXPECT_EQ(sink.outcomes[1].at(0).reason, core::failure::rank_lost);
  crash("dp_controller");
  advance(1s);
  say(event(link_event_kind::reconnected, 0, 2));
  EXPECT_EQ(frames(frame_kind::abort), 1u);
}

TEST_F(node, a_rank_without_its_actor_gets_nothing_while_another_is_ready) {
  start(2);
  crash("dp_rank", {0, 1});
  for (core::stream_id s = 1; s <= 4; ++s) {
    submit(s, "r" + std::to_string(s));
    EXPECT_EQ(only_add("r" + std::to_string(s)).rank.rank, 0);
  }
  advance(1s);
  submit(5, "later");
  EXPECT_EQ(only_add("later").rank.rank, 1);
}

TEST_F(node, a_request_that_was_sent_goes_on_although_its_rank_actor_and_its_controller_die) {
  start();
  submit(1, "a");
  crash("dp_rank");
  crash("dp_controller");
  advance(1s);
  EXPECT_EQ(pool().charges, 1u);
  output(only_add("a"), {7}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[1], ElementsAre(7));
  EXPECT_EQ(pool().charges, 0u);
  EXPECT_EQ(frames(frame_kind::abort), 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, an_order_that_dies_in_the_mailbox_of_a_rank_actor_is_placed_again) {
  start();
  crash("dp_rank");
  submit(1, "a"); // its order reaches nobody
  EXPECT_EQ(adds_of("a").size(), 0u);
  advance(1s);
  EXPECT_EQ(only_add("a").rid.attempt, 1u);
  output(only_add("a"), {7}, finish_reason::stop);
  EXPECT_EQ(counts().completed, 1u);
  EXPECT_EQ(pool().charges, 0u);
}

TEST_F(node, a_rank_that_is_lost_while_the_controller_is_away_loses_nothing_silently) {
  start(2);
  submit(1, "placed");
  const auto first = only_add("placed");
  crash("dp_controller");
  say(event(link_event_kind::lost, first.rank.rank, 1));
  advance(1s);
  ASSERT_EQ(adds_of("placed").size(), 2u);
  EXPECT_NE(adds_of("placed")[1].rank, first.rank);
  EXPECT_EQ(pool().charges, 1u);
}

TEST_F(node, a_crashed_rank_actor_loses_nothing_that_it_had_sent) {
  start();
  submit(1, "placed");
  submit(2, "streams");
  output(only_add("streams"), {1});
  crash("dp_rank");
  submit(3, "later"); // its order dies in the mailbox
  advance(1s);
  EXPECT_EQ(only_add("placed").rid.attempt, 0u);
  EXPECT_EQ(only_add("later").rid.attempt, 1u);
  output(only_add("streams"), {2}, finish_reason::stop);
  output(only_add("placed"), {9}, finish_reason::stop);
  output(only_add("later"), {3}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[1], ElementsAre(9));
  EXPECT_THAT(sink.tokens[2], ElementsAre(1, 2));
  EXPECT_EQ(counts().completed, 3u);
  EXPECT_EQ(pool().charges, 0u);
  EXPECT_EQ(frames(frame_kind::abort), 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_link_that_is_lost_while_its_rank_actor_restarts_is_not_announced_again) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  crash("dp_rank");
  say(event(link_event_kind::lost, 0, 1));
  advance(100ms);
  EXPECT_EQ(pool().ranks_up, 0u);
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].reason, core::failure::rank_lost);
  join(0, 2);
  EXPECT_EQ(pool().ranks_up, 1u);
  submit(2, "b");
  EXPECT_EQ(only_add("b").epoch, 2u);
}

TEST_F(node, a_rank_actor_that_crashes_too_often_is_parked_and_its_rank_gets_no_work) {
  start(2);
  for (int i = 0; i < 6; ++i) {
    crash("dp_rank", {0, 1});
    advance(500ms);
  }
  EXPECT_TRUE(children().degraded);
  EXPECT_EQ(pool().ranks_up, 1u);
  for (core::stream_id s = 1; s <= 3; ++s) {
    submit(s, "r" + std::to_string(s));
    const auto sent = only_add("r" + std::to_string(s));
    EXPECT_EQ(sent.rank.rank, 0);
    output(sent, {1}, finish_reason::stop);
  }
  advance(30s);
  EXPECT_FALSE(children().degraded);
  EXPECT_EQ(pool().ranks_up, 2u);
  EXPECT_THAT(fatal, IsEmpty());
}

TEST_F(node, what_the_engine_of_a_parked_rank_still_runs_is_aborted_when_its_actor_is_back) {
  start();
  submit(1, "a");
  output(only_add("a"), {1});
  for (int i = 0; i < 6; ++i) {
    crash("dp_rank");
    advance(500ms);
  }
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  EXPECT_EQ(sink.outcomes[1][0].reason, core::failure::rank_lost);
  EXPECT_EQ(frames(frame_kind::abort), 0u);
  advance(30s);
  EXPECT_EQ(pool().ranks_up, 1u);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

TEST_F(node, a_crashed_request_manager_fails_every_stream_and_tells_the_engines) {
  start();
  submit(1, "a");
  submit(2, "b");
  output(only_add("a"), {1});
  crash("request_manager");
  EXPECT_THAT(sink.failed_owners, IsEmpty());
  advance(100ms);
  ASSERT_EQ(sink.failed_owners.size(), 1u);
  EXPECT_EQ(sink.failed_owners[0].second.reason, core::failure::request_manager_restarted);
  EXPECT_EQ(frames(frame_kind::abort), 1u); // both rids in one
  EXPECT_EQ(pool().charges, 0u);
  output(adds_of("a")[0], {2}); // late
  EXPECT_THAT(sink.tokens[1], ElementsAre(1));
  submit(3, "a"); // the rid is free, the handle is another
  ASSERT_EQ(adds_of("a").size(), 2u);
  EXPECT_NE(adds_of("a")[0].rid.handle, adds_of("a")[1].rid.handle);
  output(adds_of("a")[1], {7}, finish_reason::stop);
  EXPECT_THAT(sink.tokens[3], ElementsAre(7));
  EXPECT_EQ(counts().completed, 1u);
}

TEST_F(node, of_two_request_managers_one_dies_and_only_its_streams_end) {
  managers = 2;
  start();
  std::vector<std::string> rids;
  for (core::stream_id stream = 1; stream <= 8; ++stream) {
    rids.push_back("r" + std::to_string(stream));
    submit(stream, rids.back());
    output(only_add(rids.back()), {1});
  }
  const auto owner = manager_of(rids[0]).owner;
  const auto of_the_dead = static_cast<std::size_t>(
      std::count_if(rids.begin(), rids.end(), [&](const auto& rid) { return manager_of(rid).owner == owner; }));
  ASSERT_GT(of_the_dead, 0u);
  ASSERT_LT(of_the_dead, rids.size());
  EXPECT_EQ(pool().charges, rids.size());
  crash("request_manager", {0, static_cast<std::uint16_t>(owner - 1)});
  advance(100ms);
  ASSERT_EQ(sink.failed_owners.size(), 1u);
  EXPECT_EQ(sink.failed_owners[0].first, owner);
  EXPECT_EQ(pool().charges, rids.size() - of_the_dead);
  EXPECT_EQ(frames(frame_kind::abort), 1u) << "all of its rids in one";
  for (core::stream_id stream = 1; stream <= 8; ++stream) {
    const auto add = only_add(rids[stream - 1]);
    output(add, {2}, finish_reason::stop);
    EXPECT_EQ(sink.tokens[stream].size(), core::owner_of(add.rid.handle) == owner ? 1u : 2u);
  }
  EXPECT_EQ(pool().charges, 0u);
}

TEST_F(node, an_abort_reaches_an_engine_at_most_once_and_only_while_the_request_runs_there) {
  start();
  const auto abort = [&](const std::string& rid) {
    caf::anon_send(directory->manager_for(0).handle, abort_request{rid});
    settle();
  };
  submit(1, "a");
  submit(2, "ab"); // its rid begins with that of the other
  output(only_add("a"), {1});
  abort("a");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::deadline_exceeded});
  abort("a");
  wish(0, rank_wish::drain, 100ms);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_TRUE(sink.outcomes[2].empty());
  output(only_add("ab"), {1}, finish_reason::stop);
  abort("ab"); // it has ended
  advance(1s);
  EXPECT_EQ(frames(frame_kind::abort), 1u);
  EXPECT_EQ(sink.finished[2], 1);
}

TEST_F(node, a_suspect_rank_that_fell_idle_while_the_controller_was_away_is_ready_again) {
  start(2);
  submit(1, "a", 0);
  advance(6s);
  EXPECT_EQ(pool().ranks[0].state, core::rank_state::suspect);
  crash("dp_controller");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  advance(1s);
  EXPECT_EQ(pool().ranks_up, 2u);
}

TEST_F(node, a_controller_that_restarts_while_there_is_no_request_manager_finds_its_ranks) {
  start(2);
  crash("request_manager");
  advance(100ms);
  crash("request_manager"); // now with a longer backoff than the controller's
  crash("dp_controller");
  advance(1s);
  EXPECT_EQ(pool().ranks_up, 2u);
  submit(1, "a");
  output(only_add("a"), {7}, finish_reason::stop);
  EXPECT_EQ(counts().completed, 1u);
}

TEST_F(node, a_controller_beyond_its_limit_ends_the_process_with_a_reason) {
  start();
  for (int i = 0; i < 6; ++i) {
    EXPECT_THAT(fatal, IsEmpty());
    crash("dp_controller");
    advance(500ms);
  }
  ASSERT_EQ(fatal.size(), 1u);
  EXPECT_THAT(fatal[0], HasSubstr("dp_controller unified"));
  EXPECT_THAT(fatal[0], HasSubstr("5 times in 30 s"));
}

TEST_F(node, a_request_manager_beyond_its_limit_is_named) {
  start();
  for (int i = 0; i < 6; ++i) {
    crash("request_manager");
    advance(500ms);
  }
  ASSERT_EQ(fatal.size(), 1u);
  EXPECT_THAT(fatal[0], HasSubstr("request_manager"));
}

TEST_F(node, what_each_rank_held_is_kept_second_by_second_although_nobody_asks) {
  start(2);
  submit(1, "a", 0);
  advance(3050ms);
  auto all = loads.all();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ((all[{0, 0}].size()), 3u);
  EXPECT_EQ((all[{0, 0}].back()->requests), 1u);
  EXPECT_EQ((all[{0, 1}].back()->requests), 0u);
  say(event(link_event_kind::lost, 1, 1));
  crash("introspector");
  advance(3000ms);
  all = loads.all();
  EXPECT_GE((all[{0, 1}].size()), 5u) << "it goes on with its next incarnation";
  EXPECT_EQ((all[{0, 1}].back()->state), core::rank_state::down);
}

TEST_F(node, a_snapshot_is_answered_although_an_actor_is_gone) {
  start(2);
  submit(1, "a");
  auto whole = ask<node_snapshot>(directory->introspector(), snapshot_atom::value);
  EXPECT_THAT(whole.silent, IsEmpty());
  EXPECT_EQ(whole.actors.front().role, "supervisor");
  EXPECT_EQ(whole.actors.size(), 7u);
  EXPECT_TRUE(whole.requests_known);
  EXPECT_EQ(whole.requests.accepted, 1u);
  advance(200ms); // so that it is not answered from the last round
  crash("dp_rank", {0, 1});
  crash("request_manager");
  auto part = ask<node_snapshot>(directory->introspector(), snapshot_atom::value);
  EXPECT_THAT(part.silent, Contains("dp_rank unified/1"));
  EXPECT_THAT(part.silent, Contains("request_manager"));
  EXPECT_FALSE(part.requests_known);
  ASSERT_EQ(part.pools.size(), 1u);
  EXPECT_EQ(part.pools[0].name, "unified");
  advance(100ms);
}

// What follows are cases of public reports; docs/testing.md lists all of them.

// 18. a blocking send to a dead peer froze the controller for all ranks
TEST_F(node, after_one_of_eight_ranks_died_the_others_get_all_and_those_pinned_to_it_fail_at_once) {
  start(8);
  say(event(link_event_kind::lost, 3, 1));
  for (core::stream_id s = 1; s <= 40; ++s)
    submit(s, "r" + std::to_string(s));
  submit(41, "pinned", 3);
  EXPECT_EQ(frames(frame_kind::add), 40u);
  for (const auto& row : pool().ranks)
    EXPECT_NEAR(row.requests, row.rank.rank == 3 ? 0.0 : 40.0 / 7, 1.0) << row.rank.rank;
  ASSERT_EQ(sink.outcomes[41].size(), 1u);
  EXPECT_EQ(sink.outcomes[41][0].reason, core::failure::pinned_rank_unavailable);
  join(3, 2, 8); // its replacement
  submit(42, "again", 3);
  EXPECT_EQ(only_add("again").epoch, 2u);
}

// 25. smg PR1491
TEST_F(node, a_rank_that_is_drained_with_three_streams_lets_them_end_and_can_be_removed_then) {
  start(2);
  for (core::stream_id s = 1; s <= 3; ++s) {
    submit(s, "r" + std::to_string(s), 0);
    output(only_add("r" + std::to_string(s)), {1});
  }
  wish(0, rank_wish::drain, 60s);
  EXPECT_FALSE(wish(0, rank_wish::remove).done) << "three streams run on it";
  crash("dp_rank", {0, 0});
  advance(100ms);
  EXPECT_EQ(state_of_rank(0), core::rank_state::draining) << "the refusal has not ended the drain";
  for (core::stream_id s = 1; s <= 3; ++s) {
    EXPECT_TRUE(sink.outcomes[s].empty());
    output(only_add("r" + std::to_string(s)), {2}, finish_reason::stop);
  }
  advance(300ms);
  EXPECT_EQ(counts().completed, 3u);
  EXPECT_TRUE(wish(0, rank_wish::remove).done);
  EXPECT_EQ(pool().ranks.size(), 1u);
}

// 39. one of four ranks was stopped: a quarter of the requests hung for ever
TEST_F(node, of_the_requests_on_a_rank_that_was_stopped_none_hangs) {
  start(4);
  for (core::stream_id s = 1; s <= 20; ++s)
    submit(s, "r" + std::to_string(s));
  std::set<core::stream_id> started;
  for (core::stream_id s = 1; s <= 20; ++s)
    if (const auto add = only_add("r" + std::to_string(s)); add.rank.rank == 2 && started.size() < 2) {
      output(add, {1});
      started.insert(s);
    }
  ASSERT_EQ(started.size(), 2u);
  say(event(link_event_kind::lost, 2, 1)); // its heartbeats ended
  for (core::stream_id s = 1; s <= 20; ++s) {
    const auto last = adds_of("r" + std::to_string(s)).back();
    if (started.contains(s)) {
      ASSERT_EQ(sink.outcomes[s].size(), 1u) << s;
      EXPECT_EQ(sink.outcomes[s][0].reason, core::failure::rank_lost);
    } else {
      EXPECT_NE(last.rank.rank, 2u) << s;
      output(last, {1}, finish_reason::stop);
    }
  }
  EXPECT_EQ(counts().completed, 18u);
  EXPECT_EQ(counts().in_flight(), 0u);
  EXPECT_THAT(history.violations(), IsEmpty());
}

} // namespace
} // namespace rankwise
