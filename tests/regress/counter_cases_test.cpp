#include "tests/unit/core/mini_node.hpp"

#include <gmock/gmock.h>

/// Cases from public reports against systems that do this job; the reference stands above each.
namespace rankwise::core {
namespace {

using test::make_request;
using test::mini_node;

void expect_nothing_charged(mini_node& n, std::uint16_t ranks, std::uint16_t pools = 1) {
  EXPECT_EQ(n.charges(), 0u);
  for (std::uint16_t p = 0; p < pools; ++p)
    for (std::uint16_t r = 0; r < ranks; ++r) {
      const auto f = n.controllers[p]->figures(r, n.now);
      EXPECT_EQ(f.requests, 0u);
      EXPECT_EQ(f.tokens, 0u);
      EXPECT_EQ(f.placed_tokens, 0u);
      EXPECT_EQ(f.prefill_tokens, 0u);
    }
  EXPECT_EQ(n.table.counts().in_flight(), 0u);
  n.checker.finish();
  EXPECT_TRUE(n.checker.violations().empty());
}

// 13. vllm PR18784, vllm PR44725
TEST(counter_cases, a_thousand_clients_that_disconnect_mid_request_leave_a_load_of_0) {
  auto n = mini_node::unified(4);
  for (stream_id s = 1; s <= 1000; ++s) {
    n.submit(s, make_request("r" + std::to_string(s), 100));
    if (s % 2 == 0)
      n.output(n.sent.back(), 1);
    n.cancel(s);
    n.cancel(s);
    ASSERT_EQ(n.charges(), 0u);
  }
  EXPECT_EQ(n.engine_aborts.size(), 1000u);
  EXPECT_EQ(n.controllers[0]->counts().charges_ended, 1000u);
  EXPECT_EQ(n.controllers[0]->counts().ends_of_unknown_charges, 0u);
  expect_nothing_charged(n, 4);
}

// 14. aibrix PR1246
TEST(counter_cases, a_client_that_timed_out_leaves_a_load_of_0) {
  auto n = mini_node::unified(1);
  auto r = make_request("a");
  r.deadline = n.now + std::chrono::milliseconds{100};
  n.submit(1, r);
  EXPECT_EQ(n.charges(), 1u);
  n.now += std::chrono::milliseconds{100};
  n.tick();
  expect_nothing_charged(n, 1);
}

// 15. llm-d-router#2242
TEST(counter_cases, the_prefill_charge_is_0_from_the_first_token_through_a_decode_of_60_s) {
  auto n = mini_node::pairs(1);
  n.submit(1, make_request("a", 1000));
  const auto prefill = n.leg_on(0, 0);
  const auto decode = n.leg_on(1, 0);
  n.output(decode, 1);
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(n.controllers[0]->figures(0, n.now).tokens, 0u);
    EXPECT_EQ(n.controllers[0]->figures(0, n.now).prefill_tokens, 0u);
    n.now += std::chrono::seconds{1};
    n.output(decode, 1);
  }
  n.output(prefill, 1, finish_reason::length);
  n.output(decode, 1, finish_reason::stop);
  expect_nothing_charged(n, 1, 2);
}

// 16. sglang#9484
TEST(counter_cases, a_stream_of_100_chunks_counts_1_until_its_last_chunk) {
  auto n = mini_node::unified(1);
  n.submit(1, make_request("a"));
  for (int i = 0; i < 99; ++i) {
    n.output(n.sent[0], 1);
    ASSERT_EQ(n.requests_on(0), 1u);
  }
  n.output(n.sent[0], 1, finish_reason::stop);
  EXPECT_EQ(n.tokens[1], 100u);
  expect_nothing_charged(n, 1);
}

// 17. sglang#26912
TEST(counter_cases, an_abort_in_every_state_gives_one_terminal_event) {
  for (int steps = 0; steps <= 3; ++steps) {
    SCOPED_TRACE(steps);
    auto n = mini_node::pairs(2);
    n.submit(1, make_request("a"));
    if (steps >= 1)
      n.output(n.leg_on(1, 0), 1);
    if (steps >= 2)
      n.output(n.leg_on(0, 0), 1, finish_reason::length);
    if (steps >= 3)
      n.output(n.leg_on(1, 0), 1, finish_reason::stop);
    n.abort("a");
    n.abort("a");
    EXPECT_EQ(n.outcomes[1].size() + (n.finishes[1] != 0 ? 1u : 0u), 1u);
    expect_nothing_charged(n, 2, 2);
  }
}

// 23. dynamo#4429: what a request leaves behind does not grow
TEST(counter_cases, slots_of_ended_requests_are_used_again) {
  auto n = mini_node::unified(1);
  for (stream_id s = 1; s <= 5000; ++s) {
    n.submit(s, make_request("r" + std::to_string(s)));
    n.output(n.sent.back(), 1, finish_reason::stop);
  }
  EXPECT_EQ(slot_of(n.sent.front().handle), slot_of(n.sent.back().handle));
  EXPECT_NE(n.sent.front().handle, n.sent.back().handle);
  expect_nothing_charged(n, 1);
}

// 40. the gateway aborts streams that have completed, and rids never seen
TEST(counter_cases, an_abort_after_completion_or_of_an_unknown_rid_has_no_effect) {
  auto n = mini_node::unified(1);
  auto r = make_request("a");
  r.samples = 2;
  n.submit(1, r);
  n.output(n.sent[0], 1, finish_reason::stop);
  n.output(n.sent[1], 1, finish_reason::stop);
  n.abort("a");
  n.abort("never");
  EXPECT_TRUE(n.outcomes[1].empty());
  EXPECT_TRUE(n.engine_aborts.empty());
  expect_nothing_charged(n, 1);
}

// 42. both legs carry the same rid
TEST(counter_cases, the_legs_of_a_pair_are_no_duplicates_of_each_other) {
  auto n = mini_node::pairs(1);
  n.submit(1, make_request("a"));
  EXPECT_EQ(n.sent.size(), 2u);
  EXPECT_TRUE(n.outcomes[1].empty());
  n.cancel(1);
  expect_nothing_charged(n, 1, 2);
}

} // namespace
} // namespace rankwise::core
