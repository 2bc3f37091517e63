#include "model_driver.hpp"

#include <numeric>
#include <xxhash.h>

namespace rankwise::sim {
namespace {

using core::finish_reason;

std::vector<std::int32_t> expected_tokens(std::string_view rid, std::size_t count) {
  const auto crc = wire::sglang::rid_crc32(wire::sglang::client_part(rid));
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(wire::sglang::expected_token(crc, i));
  }
  return tokens;
}

std::vector<std::uint64_t> prompt_blocks(std::uint64_t from, std::size_t count) {
  std::vector<std::uint64_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), from);
  return blocks;
}

TEST(engine_rank_model_test, a_request_gets_every_token_once_and_ends_by_length) {
  model_driver rank(plain_options());
  rank.add(ask("r1~a.0", 100, 5));
  rank.run();
  const auto& r = rank.seen["r1~a.0"];
  EXPECT_EQ(r.tokens, expected_tokens("r1", 5));
  EXPECT_EQ(r.finish, finish_reason::length);
  EXPECT_NEAR(r.first_token_s, 0.011, 1e-9); // base + 100 tokens of prefill
  EXPECT_NEAR(r.end_s, 0.051, 1e-9);
  EXPECT_EQ(rank.model.load(), (wire::sglang::load_tail{0, 0, 0, 10'000}));
  EXPECT_FALSE(rank.model.next_event_time()); // idle means idle
}

TEST(engine_rank_model_test, a_long_prompt_is_prefilled_in_chunks_while_others_decode) {
  model_driver rank(plain_options());
  rank.add(ask("short", 10, 20));
  rank.run(0.015);
  rank.add(ask("long", 2500, 2));
  rank.run();
  EXPECT_EQ(rank.seen["long"].tokens.size(), 2U);
  // It joins with the next step, needs three chunks of 1000, 1000 and 500 tokens, and "short" got a token in each of
  // them.
  EXPECT_EQ(rank.model.steps(), 20U);
  EXPECT_NEAR(rank.seen["long"].first_token_s, 0.0101 + 0.010 + 0.020 + 0.020 + 0.015, 1e-6);
}

TEST(engine_rank_model_test, the_step_grows_with_batch_kv_and_prefill) {
  const step_time_constants constants{0.03, 0.001, 0.0001, 0.01};
  EXPECT_DOUBLE_EQ(constants.seconds(2, 30, 4), 0.03 + 0.002 + 0.003 + 0.04);
}

TEST(engine_rank_model_test, max_running_requests_and_kv_capacity_hold_requests_back) {
  auto options = plain_options();
  options.running_requests_max = 2;
  model_driver rank(options);
  for (int i = 0; i < 3; ++i) {
    rank.add(ask("r" + std::to_string(i), 10, 3));
  }
  rank.run(0.005);
  EXPECT_EQ(rank.model.load().num_running, 2U);
  EXPECT_EQ(rank.model.load().num_waiting, 1U);
  rank.run();
  EXPECT_EQ(rank.seen["r2"].finish, finish_reason::length);

  model_driver full(plain_options());
  full.add(ask("big", 6000, 10));
  full.add(ask("also big", 6000, 10));
  full.run(0.005);
  EXPECT_EQ(full.model.load().num_running, 1U);
  EXPECT_EQ(full.model.load().num_waiting, 1U);
  full.run();
  EXPECT_EQ(full.seen["also big"].tokens.size(), 10U);
}

TEST(engine_rank_model_test, the_newest_request_is_retracted_when_kv_runs_out_and_still_ends_whole) {
  auto options = plain_options();
  options.kv_capacity_tokens = 1000;
  options.new_token_ratio = 0;
  model_driver rank(options);
  rank.add(ask("old", 300, 300));
  rank.add(ask("new", 300, 300));
  rank.run();
  EXPECT_GT(rank.model.retractions(), 0U);
  EXPECT_EQ(rank.seen["old"].tokens, expected_tokens("old", 300));
  EXPECT_EQ(rank.seen["new"].tokens, expected_tokens("new", 300));
  EXPECT_LT(rank.seen["old"].end_s, rank.seen["new"].end_s);
  EXPECT_EQ(rank.model.load().kv_used_tokens, 0U);
}

TEST(engine_rank_model_test, a_known_prefix_is_not_computed_again) {
  model_driver rank(plain_options());
  auto first = ask("first", 1000, 1);
  first.blocks = prompt_blocks(1, 100);
  auto second = first;
  second.rid = "second";
  auto half = ask("half", 1000, 1);
  half.blocks = prompt_blocks(1, 50);
  const auto other_half = prompt_blocks(1000, 50);
  half.blocks.insert(half.blocks.end(), other_half.begin(), other_half.end());
  rank.add(first);
  rank.run();
  const double before = rank.at();
  rank.add(second);
  rank.run();
  EXPECT_EQ(rank.seen["second"].cached_tokens, 990U); // the last block is computed, to have something to sample from
  EXPECT_NEAR(rank.at() - before, 0.0101, 1e-6);
  rank.add(half);
  rank.run();
  EXPECT_EQ(rank.seen["half"].cached_tokens, 500U);
  EXPECT_EQ(rank.model.load().kv_used_tokens, 0U); // what is only cached is not in use
  rank.model.flush_cache();
  auto third = second;
  third.rid = "third";
  rank.add(third);
  rank.run();
  EXPECT_EQ(rank.seen["third"].cached_tokens, 0U);
}

TEST(engine_rank_model_test, the_prefix_cache_makes_room_for_requests) {
  auto options = plain_options();
  options.kv_capacity_tokens = 2000;
  model_driver rank(options);
  for (std::uint64_t i = 0; i < 50; ++i) {
    auto request = ask("r" + std::to_string(i), 900, 20);
    request.blocks = prompt_blocks(i * 1000, 90);
    rank.add(request);
  }
  rank.run();
  for (const auto& [rid, r] : rank.seen) {
    EXPECT_EQ(r.tokens.size(), 20U) << rid;
  }
}

TEST(engine_rank_model_test, aborts_end_a_waiting_request_at_once_and_a_running_one_with_the_next_step) {
  auto options = plain_options();
  options.running_requests_max = 1;
  model_driver rank(options);
  rank.add(ask("runs", 10, 1000));
  rank.add(ask("waits", 10, 10));
  rank.run(0.1);
  rank.abort("waits");
  EXPECT_EQ(rank.seen["waits"].finish, finish_reason::abort);
  EXPECT_EQ(rank.seen["waits"].message, "Aborted");
  rank.abort("runs");
  EXPECT_EQ(rank.seen["runs"].finish, finish_reason::none);
  rank.run();
  EXPECT_EQ(rank.seen["runs"].finish, finish_reason::abort);
  EXPECT_LT(rank.at(), 0.13);
  rank.abort("nobody");
  EXPECT_EQ(rank.model.requests_open(), 0U);
}

TEST(engine_rank_model_test, what_can_not_be_served_is_refused_with_a_status) {
  model_driver rank(plain_options());
  rank.add(ask("empty", 0, 10));
  rank.add(ask("huge", 10'000, 10));
  rank.add(ask("twice", 10, 10));
  rank.add(ask("twice", 10, 10));
  EXPECT_EQ(rank.seen["empty"].status, 400);
  EXPECT_EQ(rank.seen["huge"].status, 400);
  EXPECT_EQ(rank.seen["twice"].status, 400);
  auto decode = plain_options();
  decode.role = core::pool_role::decode;
  model_driver without_room(decode);
  without_room.add(ask("no room", 10, 10));
  EXPECT_EQ(without_room.seen["no room"].status, 400);
}

TEST(engine_rank_model_test, a_request_that_is_not_streamed_gets_one_output) {
  model_driver rank(plain_options());
  auto request = ask("r", 10, 20);
  request.stream = false;
  rank.add(request);
  rank.run();
  EXPECT_EQ(rank.steps_with_output, 1U);
  EXPECT_EQ(rank.seen["r"].tokens, expected_tokens("r", 20));
}

TEST(engine_rank_model_test, misbehaviour_is_as_asked) {
  auto options = plain_options();
  options.faults.fail_all = true;
  model_driver failing(options);
  failing.add(ask("r", 10, 10));
  EXPECT_EQ(failing.seen["r"].status, 500);

  options = plain_options();
  options.faults.slow_factor = 3;
  model_driver slow(options);
  slow.add(ask("r", 100, 1));
  slow.run();
  EXPECT_NEAR(slow.at(), 0.033, 1e-9);

  options = plain_options();
  options.faults.freeze_after_requests = 2;
  model_driver freezing(options);
  freezing.add(ask("r1", 10, 100));
  freezing.run(0.05);
  freezing.add(ask("r2", 10, 100));
  freezing.run();
  EXPECT_TRUE(freezing.model.frozen());
  EXPECT_LT(freezing.seen["r1"].tokens.size(), 10U);
  EXPECT_FALSE(freezing.model.next_event_time());
}

TEST(engine_rank_model_test, the_time_scale_divides_every_time) {
  auto options = plain_options();
  options.time_scale = 10;
  model_driver rank(options);
  rank.add(ask("r", 100, 5));
  rank.run();
  EXPECT_NEAR(rank.at(), 0.0051, 1e-9);
}

TEST(engine_rank_model_test, a_runner_that_comes_late_by_less_than_a_step_keeps_the_pace) {
  engine_rank_model rank(plain_options(), 1);
  rank_outputs out;
  core::timestamp now{};
  rank.add(now, ask("r", 0 + 10, 1000), out);
  rank.step(now, out);
  for (int i = 0; i < 100; ++i) {
    now = *rank.step_end() + std::chrono::milliseconds(3);
    rank.step(now, out);
  }
  EXPECT_NEAR(core::to_seconds(now - core::timestamp{}), 100 * 0.010 + 0.003, 0.001);
  now += std::chrono::seconds(10); // a long way behind: the lag is dropped, not made up for in a burst
  rank.step(now, out);
  EXPECT_EQ(*rank.step_end(), now + std::chrono::milliseconds(10));
}

// -- prefill and decode
// -------------------------------------------------------------------------------------------------

engine_rank_options role(core::pool_role role) {
  auto options = plain_options();
  options.role = role;
  options.pd_wait_s = 10;
  return options;
}

TEST(engine_rank_pd_test, a_prefill_rank_holds_kv_until_it_is_fetched) {
  model_driver prefill(role(core::pool_role::prefill));
  prefill.add(ask_in_room("p", 100, 50, 7));
  prefill.run(0.5);
  EXPECT_EQ(prefill.seen["p"].finish, finish_reason::none);
  EXPECT_EQ(prefill.model.load().kv_used_tokens, 100U);
  prefill.model.query_kv(prefill.now, 7, 99);
  prefill.run();
  ASSERT_EQ(prefill.answers.size(), 1U);
  EXPECT_EQ(prefill.answers[0].query, 99U);
  EXPECT_TRUE(prefill.answers[0].ready);
  EXPECT_NEAR(prefill.at(), 0.505, 1e-6);
  EXPECT_EQ(prefill.seen["p"].finish, finish_reason::length);
  EXPECT_EQ(prefill.seen["p"].tokens, expected_tokens("p", 1));
  EXPECT_EQ(prefill.model.load().kv_used_tokens, 0U);
}

TEST(engine_rank_pd_test, a_decode_rank_may_ask_before_the_prefill_is_done) {
  model_driver prefill(role(core::pool_role::prefill));
  prefill.model.query_kv(prefill.now, 7, 5);
  prefill.add(ask_in_room("p", 100, 50, 7));
  prefill.run();
  ASSERT_EQ(prefill.answers.size(), 1U);
  EXPECT_TRUE(prefill.answers[0].ready);
  EXPECT_NEAR(prefill.at(), 0.011 + 0.005, 1e-6);
}

TEST(engine_rank_pd_test, kv_that_nobody_fetches_ends_in_the_engines_error) {
  model_driver prefill(role(core::pool_role::prefill));
  prefill.add(ask_in_room("p", 100, 50, 7));
  prefill.run();
  EXPECT_EQ(prefill.seen["p"].status, 500);
  EXPECT_NE(prefill.seen["p"].message.find("room 7"), std::string::npos);
  EXPECT_NEAR(prefill.at(), 10.011, 1e-3);
  EXPECT_EQ(prefill.model.load().kv_used_tokens, 0U);
}

TEST(engine_rank_pd_test, a_question_for_a_room_that_never_comes_is_answered_no) {
  model_driver prefill(role(core::pool_role::prefill));
  prefill.model.query_kv(prefill.now, 8, 5);
  prefill.run();
  ASSERT_EQ(prefill.answers.size(), 1U);
  EXPECT_FALSE(prefill.answers[0].ready);
  EXPECT_NEAR(prefill.at(), 10, 1e-3);
}

TEST(engine_rank_pd_test, a_prefill_that_is_aborted_tells_its_partner) {
  model_driver prefill(role(core::pool_role::prefill));
  prefill.model.query_kv(prefill.now, 7, 5);
  prefill.add(ask_in_room("p", 5000, 50, 7));
  prefill.run(0.015);
  prefill.abort("p");
  prefill.run();
  ASSERT_EQ(prefill.answers.size(), 1U);
  EXPECT_FALSE(prefill.answers[0].ready);
  EXPECT_EQ(prefill.seen["p"].finish, finish_reason::abort);
  EXPECT_LT(prefill.at(), 1.0);
}

TEST(engine_rank_pd_test, a_decode_rank_reserves_room_asks_and_streams_from_the_first_token) {
  model_driver decode(role(core::pool_role::decode));
  decode.add(ask_in_room("d", 1000, 5, 7));
  decode.run(0.001);
  ASSERT_EQ(decode.queries.size(), 1U);
  EXPECT_EQ(decode.queries[0].rid, "d");
  EXPECT_EQ(decode.queries[0].where.room, 7);
  EXPECT_EQ(decode.model.load().num_waiting, 1U);
  EXPECT_EQ(decode.model.load().kv_used_tokens, 1000U);
  decode.run(2);
  decode.model.kv_arrived(decode.now, "d");
  decode.run();
  EXPECT_EQ(decode.seen["d"].tokens, expected_tokens("d", 5));
  EXPECT_NEAR(decode.seen["d"].first_token_s, 2.010, 1e-6); // nothing is prefilled again
}

TEST(engine_rank_pd_test, a_partner_that_does_not_come_ends_in_the_engines_error) {
  model_driver decode(role(core::pool_role::decode));
  decode.add(ask_in_room("late", 1000, 5, 7));
  decode.add(ask_in_room("refused", 1000, 5, 8));
  decode.run(0.001);
  rank_outputs out;
  decode.model.kv_failed(decode.now, "refused", "no such room", out);
  ASSERT_EQ(out.aborts.size(), 1U);
  EXPECT_EQ(out.aborts[0].status, 500);
  decode.run();
  EXPECT_EQ(decode.seen["late"].status, 500);
  EXPECT_NEAR(decode.at(), 10, 1e-3);
  EXPECT_EQ(decode.model.load().kv_used_tokens, 0U);
  decode.model.kv_arrived(decode.now, "late"); // too late: ignored
  EXPECT_FALSE(decode.model.has_work());
}

// -- as a whole
// ---------------------------------------------------------------------------------------------------------

struct soak_result {
  std::uint64_t history = 0; ///< hash over every output and its time
  std::size_t requests = 0;
  std::uint64_t retractions = 0;
};

/// Random requests and aborts on a rank that is much too small, checked for KV accounting after each step.
soak_result soak(std::uint64_t seed) {
  auto options = plain_options();
  options.kv_capacity_tokens = 3000;
  options.new_token_ratio = 0.1;
  options.step_jitter = 0.2;
  model_driver rank(options, seed);
  random_source random(seed);
  for (int i = 0; i < 400; ++i) {
    auto request = ask("r" + std::to_string(i), static_cast<std::uint32_t>(1 + random.below(900)),
                       static_cast<std::uint32_t>(1 + random.below(300)));
    request.blocks = prompt_blocks(random.below(20) * 1000, request.input_tokens / 10);
    request.stream = random.below(4) != 0;
    rank.add(request);
    if (random.below(5) == 0) {
      rank.abort("r" + std::to_string(random.below(static_cast<std::uint64_t>(i) + 1)));
    }
    rank.run(rank.at() + random.exponential(0.3));
    EXPECT_LE(rank.model.load().kv_used_tokens, options.kv_capacity_tokens);
  }
  rank.run();
  EXPECT_EQ(rank.model.requests_open(), 0U);
  EXPECT_EQ(rank.model.load().kv_used_tokens, 0U);
  soak_result result{0, rank.seen.size(), rank.model.retractions()};
  for (const auto& [rid, r] : rank.seen) {
    EXPECT_NE(r.finish, finish_reason::none) << rid;
    EXPECT_EQ(r.tokens, expected_tokens(rid, r.tokens.size()));
    const std::string line = rid + " " + std::to_string(r.tokens.size()) + " " +
                             std::to_string(static_cast<int>(r.finish)) + " " + std::to_string(r.first_token_s) + " " +
                             std::to_string(r.end_s);
    result.history = XXH3_64bits_withSeed(line.data(), line.size(), result.history);
  }
  return result;
}

TEST(engine_rank_model_test, the_same_seed_gives_the_same_history_and_another_one_another) {
  const auto first = soak(42);
  EXPECT_EQ(first.requests, 400U);
  EXPECT_GT(first.retractions, 0U);
  EXPECT_EQ(soak(42).history, first.history);
  EXPECT_NE(soak(43).history, first.history);
}

} // namespace
} // namespace rankwise::sim
