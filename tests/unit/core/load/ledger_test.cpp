#include "tests/unit/core/mini_node.hpp"

#include "core/load/ledger.hpp"

#include <gtest/gtest.h>

namespace rankwise::core {
namespace {

using test::at_ms;
using test::report_of;

ledger::charge charge_on(std::uint16_t rank, std::uint64_t prompt, rank_epoch epoch = 1) {
  ledger::charge c;
  c.rank = rank;
  c.epoch = epoch;
  c.prompt_tokens = prompt;
  c.limit_tokens = prompt + 10;
  return c;
}

ledger open_ledger(std::uint16_t ranks = 1) {
  ledger l{ledger_options{}};
  for (std::uint16_t i = 0; i < ranks; ++i)
    l.open(i, 1);
  return l;
}

TEST(ledger, a_charge_is_made_once_and_released_once) {
  auto l = open_ledger();
  EXPECT_TRUE(l.add(1, charge_on(0, 100)));
  EXPECT_FALSE(l.add(1, charge_on(0, 100)));
  EXPECT_EQ(l.of(0, at_ms(0)).requests, 1u);
  EXPECT_EQ(l.of(0, at_ms(0)).placed_tokens, 100u);
  EXPECT_EQ(l.limit_tokens(), 110u);
  EXPECT_TRUE(l.end(1, at_ms(1)).has_value());
  EXPECT_FALSE(l.end(1, at_ms(2)).has_value());
  EXPECT_EQ(l.of(0, at_ms(3)).requests, 0u);
  EXPECT_EQ(l.of(0, at_ms(3)).placed_tokens, 0u);
  EXPECT_EQ(l.of(0, at_ms(3)).prefill_tokens, 0u);
  EXPECT_EQ(l.limit_tokens(), 0u);
}

TEST(ledger, a_prefill_charge_is_given_back_once_while_the_leg_goes_on) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 100));
  EXPECT_TRUE(l.release(1, at_ms(5)));
  EXPECT_FALSE(l.release(1, at_ms(6)));
  EXPECT_EQ(l.of(0, at_ms(6)).requests, 1u);
  EXPECT_EQ(l.of(0, at_ms(6)).placed_tokens, 0u);
  EXPECT_EQ(l.of(0, at_ms(6)).prefill_tokens, 0u);
  EXPECT_EQ(l.limit_tokens(), 0u);
  EXPECT_TRUE(l.first_token(1, at_ms(7)));
  EXPECT_TRUE(l.end(1, at_ms(8)).has_value());
  EXPECT_EQ(l.of(0, at_ms(9)).placed_tokens, 0u);
  EXPECT_EQ(l.of(0, at_ms(9)).prefill_tokens, 0u);
}

TEST(ledger, a_charge_on_a_closed_rank_or_under_another_epoch_is_refused) {
  auto l = open_ledger();
  EXPECT_FALSE(l.add(1, charge_on(0, 10, 2)));
  EXPECT_FALSE(l.add(1, charge_on(3, 10)));
  EXPECT_EQ(l.charge_count(), 0u);
}

TEST(ledger, a_report_never_erases_a_charge_that_it_cannot_have_seen) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  EXPECT_EQ(l.report(report_of(0, 1, at_ms(1), 0)), report_verdict::accepted);
  EXPECT_EQ(l.of(0, at_ms(1)).tokens, 1000u);
  l.first_token(1, at_ms(10));
  l.report(report_of(0, 2, at_ms(20), 0)); // may have been sampled before the first token
  EXPECT_EQ(l.of(0, at_ms(20)).tokens, 1000u);
  l.report(report_of(0, 3, at_ms(69), 0));
  EXPECT_EQ(l.of(0, at_ms(69)).tokens, 1000u);
  l.report(report_of(0, 4, at_ms(70), 1000)); // sampled at 10 ms or later
  EXPECT_EQ(l.of(0, at_ms(70)).tokens, 1000u);
}

TEST(ledger, a_charge_that_a_report_contains_is_not_counted_beside_it) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  l.first_token(1, at_ms(0));
  l.report(report_of(0, 1, at_ms(100), 1005));
  EXPECT_EQ(l.of(0, at_ms(100)).tokens, 1005u);
  l.add(2, charge_on(0, 300));
  EXPECT_EQ(l.of(0, at_ms(100)).tokens, 1305u);
}

TEST(ledger, tokens_of_an_ended_leg_are_subtracted_until_a_report_can_know) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  l.add(2, charge_on(0, 500));
  l.first_token(1, at_ms(0));
  l.first_token(2, at_ms(0));
  l.report(report_of(0, 1, at_ms(100), 1500));
  l.end(1, at_ms(110));
  EXPECT_EQ(l.of(0, at_ms(110)).tokens, 500u);
  l.report(report_of(0, 2, at_ms(120), 1500)); // sampled before the end
  EXPECT_EQ(l.of(0, at_ms(120)).tokens, 500u);
  l.report(report_of(0, 3, at_ms(170), 500));
  EXPECT_EQ(l.of(0, at_ms(170)).tokens, 500u);
}

TEST(ledger, an_emptied_rank_is_idle_at_once_whatever_its_last_report_said) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  l.first_token(1, at_ms(0));
  l.report(report_of(0, 1, at_ms(100), 90'000));
  EXPECT_EQ(l.of(0, at_ms(100)).tokens, 90'000u);
  l.end(1, at_ms(101));
  EXPECT_EQ(l.of(0, at_ms(101)).tokens, 0u);
}

TEST(ledger, a_rank_that_was_emptied_does_not_look_busy_again_with_its_next_small_request) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  l.first_token(1, at_ms(90));
  l.report(report_of(0, 1, at_ms(100), 90'000));
  l.end(1, at_ms(101));
  l.add(2, charge_on(0, 10));
  EXPECT_EQ(l.of(0, at_ms(102)).tokens, 10u);
  l.report(report_of(0, 2, at_ms(110), 90'000)); // sampled before it was emptied
  EXPECT_EQ(l.of(0, at_ms(110)).tokens, 10u);
  l.report(report_of(0, 3, at_ms(200), 400)); // this one can know
  EXPECT_EQ(l.of(0, at_ms(200)).tokens, 410u);
}

TEST(ledger, every_report_that_does_not_count_gets_its_verdict) {
  auto l = open_ledger(2);
  EXPECT_EQ(l.report(report_of(0, 5, at_ms(5), 50)), report_verdict::accepted);
  EXPECT_EQ(l.report(report_of(0, 5, at_ms(6), 60)), report_verdict::repeated);
  EXPECT_EQ(l.report(report_of(0, 4, at_ms(4), 40)), report_verdict::out_of_order);
  EXPECT_EQ(l.report(report_of(0, 9, at_ms(9), 90, 7)), report_verdict::old_epoch);
  EXPECT_EQ(l.report(report_of(9, 1, at_ms(9), 90)), report_verdict::unknown_rank);
  l.close(1);
  EXPECT_EQ(l.report(report_of(1, 1, at_ms(9), 90)), report_verdict::unknown_rank);
  EXPECT_EQ(l.newest_report(0)->kv_used_tokens, 50u);
  for (std::uint8_t i = 0; i < report_verdict_count; ++i)
    EXPECT_NE(to_string(static_cast<report_verdict>(i)), "unknown");
}

TEST(ledger, a_rank_whose_reports_went_stale_is_judged_by_what_was_placed_on_it) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  l.first_token(1, at_ms(0));
  l.report(report_of(0, 1, at_ms(100), 50'000));
  l.set_generated(0, 1, 1, 4);
  l.set_generated(0, 1, 2, 100);
  l.set_generated(0, 1, 2, 3); // its newest word
  EXPECT_FALSE(l.of(0, at_ms(2100)).stale);
  EXPECT_EQ(l.of(0, at_ms(2100)).tokens, 50'000u);
  EXPECT_TRUE(l.of(0, at_ms(2101)).stale);
  EXPECT_EQ(l.of(0, at_ms(2101)).tokens, 1007u);
  EXPECT_EQ(l.of(0, at_ms(2101)).report_age, std::chrono::milliseconds{2001});
}

TEST(ledger, what_an_owner_generated_goes_with_the_owner) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 1000));
  l.set_generated(0, 1, 1, 4);
  l.set_generated(0, 1, 2, 3);
  l.forget_owner(1);
  EXPECT_EQ(l.of(0, at_ms(0)).tokens, 1003u);
}

TEST(ledger, a_rank_without_any_report_counts_its_charges) {
  auto l = open_ledger();
  EXPECT_FALSE(l.of(0, at_ms(0)).report_age.has_value());
  l.add(1, charge_on(0, 1000));
  EXPECT_EQ(l.of(0, at_ms(0)).tokens, 1000u);
  EXPECT_EQ(l.of(0, at_ms(0)).prefill_tokens, 1000u);
  l.first_token(1, at_ms(1));
  EXPECT_EQ(l.of(0, at_ms(1)).prefill_tokens, 0u);
}

TEST(ledger, a_new_epoch_forgets_charges_and_reports_of_the_old_one) {
  auto l = open_ledger();
  l.add(3, charge_on(0, 10));
  l.add(2, charge_on(0, 10));
  l.report(report_of(0, 9, at_ms(1), 500));
  EXPECT_EQ(l.open(0, 1), std::vector<request_handle>{}); // the same epoch: nothing
  EXPECT_EQ(l.open(0, 2), (std::vector<request_handle>{2, 3}));
  EXPECT_EQ(l.of(0, at_ms(2)).requests, 0u);
  EXPECT_FALSE(l.newest_report(0).has_value());
  EXPECT_EQ(l.limit_tokens(), 0u);
  EXPECT_EQ(l.report(report_of(0, 10, at_ms(2), 500)), report_verdict::old_epoch);
  EXPECT_EQ(l.report(report_of(0, 1, at_ms(3), 5, 2)), report_verdict::accepted);
  l.set_generated(0, 1, 1, 99); // of the old epoch: ignored
  l.add(4, charge_on(0, 1, 2));
  EXPECT_EQ(l.of(0, at_ms(9000)).tokens, 1u);
}

TEST(ledger, a_closed_rank_returns_what_was_on_it) {
  auto l = open_ledger(2);
  l.add(1, charge_on(0, 10));
  l.add(2, charge_on(1, 10));
  EXPECT_EQ(l.close(0), std::vector<request_handle>{1});
  EXPECT_EQ(l.charge_count(), 1u);
  EXPECT_EQ(l.find(1), nullptr);
  EXPECT_NE(l.find(2), nullptr);
  EXPECT_EQ(l.close(77), std::vector<request_handle>{});
}

TEST(ledger, a_rank_that_never_reports_costs_no_memory_per_request) {
  auto l = open_ledger();
  l.add(1, charge_on(0, 10)); // keeps the rank from being empty
  for (request_handle h = 2; h < 10'000; ++h) {
    l.add(h, charge_on(0, 10));
    l.first_token(h, at_ms(static_cast<int>(h)));
    l.end(h, at_ms(static_cast<int>(h)));
    ASSERT_LE(l.remembered(0), 128u);
  }
  // A late first report still contains what was prefilled before it.
  l.first_token(1, at_ms(10'001));
  EXPECT_EQ(l.report(report_of(0, 1, at_ms(11'000), 500)), report_verdict::accepted);
  EXPECT_EQ(l.of(0, at_ms(11'000)).tokens, 500u);
}

TEST(ledger, words_on_unknown_handles_have_no_effect) {
  auto l = open_ledger();
  EXPECT_FALSE(l.first_token(5, at_ms(0)));
  EXPECT_FALSE(l.release(5, at_ms(0)));
  EXPECT_FALSE(l.end(5, at_ms(0)).has_value());
}

} // namespace
} // namespace rankwise::core
