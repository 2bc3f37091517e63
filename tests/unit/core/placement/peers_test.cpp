#include "core/placement/policies/peers.hpp"
#include "core/placement/policy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// Decisions of other projects' rules, computed by hand.
namespace rankwise::core {
namespace {

using testing::Each;
using testing::ElementsAre;

std::vector<rank_view> equal_ranks(std::uint16_t count) {
  std::vector<rank_view> v(count);
  for (std::uint16_t i = 0; i < count; ++i) {
    v[i].rank = i;
    v[i].kv_capacity = 1'000'000;
  }
  return v;
}

placement_request prompt(std::uint64_t tokens, std::span<const std::uint64_t> blocks = {}) {
  placement_request r;
  r.prompt_tokens = tokens;
  r.blocks = blocks;
  r.block_tokens = 512;
  return r;
}

load_report reported(std::uint16_t rank, std::uint32_t running, std::uint32_t waiting, double kv_share) {
  load_report r;
  r.rank = {0, rank};
  r.num_running = running;
  r.num_waiting = waiting;
  r.kv_total_tokens = 1000;
  r.kv_used_tokens = static_cast<std::uint64_t>(1000 * kv_share);
  return r;
}

std::uint16_t place(policy& p, const std::vector<rank_view>& ranks, const placement_request& request) {
  const auto c = p.choose(ranks, request);
  p.on_placed(c->rank, request);
  return c->rank;
}

/// How often each rank is chosen when nothing is placed.
std::vector<int> chosen(policy& p, const std::vector<rank_view>& ranks, const placement_request& request, int times) {
  std::vector<int> counts(ranks.size());
  for (int i = 0; i < times; ++i)
    ++counts[p.choose(ranks, request)->rank];
  return counts;
}

TEST(vllm_counts, four_times_waiting_plus_running_with_placements_counted_as_waiting) {
  vllm p{vllm::rule::counts};
  const auto ranks = equal_ranks(3);
  p.on_report(reported(0, 9, 0, 0));  // 9
  p.on_report(reported(1, 0, 2, 0));  // 8
  p.on_report(reported(2, 12, 0, 0)); // 12
  EXPECT_EQ(p.score_of(ranks[0], prompt(1)), 9);
  EXPECT_EQ(p.score_of(ranks[1], prompt(1)), 8);
  EXPECT_EQ(place(p, ranks, prompt(1)), 1); // now 12
  EXPECT_EQ(place(p, ranks, prompt(1)), 0); // now 13
  EXPECT_EQ(place(p, ranks, prompt(1)), 1) << "12 and 12: the first";
  p.on_report(reported(1, 1, 0, 0));
  EXPECT_EQ(p.score_of(ranks[1], prompt(1)), 1) << "a report wipes what was placed";
  EXPECT_EQ(place(p, ranks, prompt(1)), 1);
}

TEST(vllm_counts, ties_go_to_the_first_rank) {
  vllm p{vllm::rule::counts};
  EXPECT_THAT(chosen(p, equal_ranks(4), prompt(1), 10), ElementsAre(10, 0, 0, 0));
}

TEST(vllm_now, the_larger_of_in_flight_and_reported_with_kv_when_something_waits) {
  vllm p{vllm::rule::in_flight};
  auto ranks = equal_ranks(3);
  ranks[0].requests = 7;
  p.on_report(reported(0, 2, 1, 0.5)); // max(7, 3) + 6 x 1 x 0 = 7
  ranks[1].requests = 2;
  p.on_report(reported(1, 3, 2, 0.75)); // max(2, 5) + 6 x 2 x 0.25 = 8
  ranks[2].requests = 6;
  p.on_report(reported(2, 6, 0, 1.0)); // nothing waits: 6
  EXPECT_EQ(p.score_of(ranks[0], prompt(1)), 7);
  EXPECT_EQ(p.score_of(ranks[1], prompt(1)), 8);
  EXPECT_EQ(p.score_of(ranks[2], prompt(1)), 6);
  EXPECT_THAT(chosen(p, ranks, prompt(1), 5), ElementsAre(0, 0, 5));
}

TEST(vllm_now, the_start_moves_by_one_with_each_decision) {
  vllm p{vllm::rule::in_flight};
  EXPECT_THAT(chosen(p, equal_ranks(4), prompt(1), 40), Each(10));
}

TEST(vllm_now, a_new_incarnation_of_a_rank_has_no_report) {
  vllm p{vllm::rule::in_flight};
  const auto ranks = equal_ranks(2);
  p.on_report(reported(0, 5, 5, 1));
  p.on_rank_opened(0);
  EXPECT_EQ(p.score_of(ranks[0], prompt(1)), 0);
}

TEST(dynamo_rule, blocks_to_prefill_less_the_overlap_plus_blocks_in_use) {
  dynamo p{policy_options{}};
  auto ranks = equal_ranks(2);
  // In blocks of 16, for a prompt of 1,600: 100 to prefill and 100 more in use, beside what is there.
  ranks[0].work_tokens = 320; // 20
  ranks[0].placed_tokens = 3200;
  ranks[0].generated_tokens = 160; // 210
  ranks[1].placed_tokens = 4800;   // 300
  const auto first = p.choose(ranks, prompt(1600));
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->score, 20 + 100 + 210 + 100);
  // 1,536 of the tokens are on rank 1: it has 4 to prefill, and is 300 + 100 in use.
  const std::vector<std::uint64_t> blocks{1, 2, 3};
  p.on_placed(1, prompt(1600, blocks));
  const auto second = p.choose(ranks, prompt(1600, blocks));
  EXPECT_EQ(second->rank, 1);
  EXPECT_EQ(second->score, 4 + 300 + 100);
  EXPECT_EQ(second->cached_tokens, 1536u);
  p.on_rank_opened(1); // another process: nothing is cached
  EXPECT_EQ(p.choose(ranks, prompt(1600, blocks))->rank, 0);
}

TEST(dynamo_rule, knows_nothing_of_reports_and_draws_among_equals) {
  dynamo p{policy_options{}};
  p.on_report(reported(0, 99, 99, 1));
  for (const int n : chosen(p, equal_ranks(4), prompt(100), 400))
    EXPECT_NEAR(n, 100, 40);
}

TEST(dynamo_rule, where_the_kv_comes_from_elsewhere_only_blocks_in_use_count) {
  dynamo p{policy_options{}};
  auto ranks = equal_ranks(2);
  ranks[0].work_tokens = 100'000;
  ranks[1].placed_tokens = 16;
  auto r = prompt(1600);
  r.needs_prefill = false;
  EXPECT_EQ(p.choose(ranks, r)->rank, 0);
  EXPECT_EQ(p.choose(ranks, r)->score, 100);
}

TEST(smg_least_load, queue_over_throughput_plus_a_penalty_of_kv) {
  const auto p = make_policy("smg_least_load", {});
  const auto ranks = equal_ranks(3);
  p->on_report(reported(0, 0, 2, 0));     // 2,048 / 8,000 = 0.256
  p->on_report(reported(1, 0, 0, 0.5));   // 0.15 x 1 = 0.15
  p->on_report(reported(2, 99, 0, 0.75)); // 0.15 x 3 = 0.45
  EXPECT_DOUBLE_EQ(*p->score_of(ranks[0], prompt(1)), 0.256);
  EXPECT_DOUBLE_EQ(*p->score_of(ranks[1], prompt(1)), 0.15);
  EXPECT_DOUBLE_EQ(*p->score_of(ranks[2], prompt(1)), 0.45);
  EXPECT_EQ(place(*p, ranks, prompt(1600)), 1); // now 0.35
  EXPECT_EQ(place(*p, ranks, prompt(1600)), 0); // now 0.456
  EXPECT_EQ(place(*p, ranks, prompt(1600)), 1); // now 0.55
  EXPECT_EQ(place(*p, ranks, prompt(1600)), 2);
  p->on_report(reported(1, 0, 0, 0.5));
  EXPECT_DOUBLE_EQ(*p->score_of(ranks[1], prompt(1)), 0.15) << "the report resets what was placed";
}

TEST(smg_least_load, a_full_rank_has_a_finite_score_and_equals_are_drawn) {
  const auto p = make_policy("smg_least_load", {});
  const auto ranks = equal_ranks(4);
  for (const int n : chosen(*p, ranks, prompt(1), 400))
    EXPECT_NEAR(n, 100, 40);
  p->on_report(reported(0, 0, 0, 1));
  EXPECT_TRUE(std::isfinite(*p->score_of(ranks[0], prompt(1))));
  EXPECT_EQ(chosen(*p, ranks, prompt(1), 100)[0], 0);
}

TEST(smg_power_of_two, the_worst_rank_is_never_taken_and_every_other_is) {
  const auto p = make_policy("smg_power_of_two", {});
  p->on_report(reported(2, 0, 3, 0));
  const auto counts = chosen(*p, equal_ranks(4), prompt(1), 400);
  EXPECT_EQ(counts[2], 0);
  for (const int r : {0, 1, 3})
    EXPECT_GT(counts[static_cast<std::size_t>(r)], 60);
  EXPECT_EQ(p->choose(equal_ranks(1), prompt(1))->rank, 0);
}

TEST(smg_servicer, fewest_in_flight_and_the_lowest_rank_among_equals_blind_to_tokens) {
  const auto p = make_policy("smg_servicer", {});
  auto ranks = equal_ranks(3);
  ranks[0].requests = 2;
  ranks[1].requests = 1;
  ranks[1].tokens = 900'000;
  ranks[2].requests = 1;
  EXPECT_EQ(p->choose(ranks, prompt(1))->rank, 1);
}

TEST(llm_d_rule, twice_the_queue_twice_the_kv_and_three_times_the_prefix) {
  llm_d p{policy_options{}};
  const auto ranks = equal_ranks(3);
  const std::vector<std::uint64_t> blocks{1, 2};
  p.on_report(reported(0, 0, 4, 0.25)); // queue 0, KV 0.75: 1.5
  p.on_report(reported(1, 0, 0, 0.75)); // queue 1, KV 0.25: 2.5
  p.on_report(reported(2, 0, 2, 0.5));  // queue 0.5, KV 0.5: 2
  EXPECT_EQ(p.choose(ranks, prompt(2048))->rank, 1);
  EXPECT_DOUBLE_EQ(p.choose(ranks, prompt(2048))->score, -2.5);
  p.on_placed(0, prompt(2048, blocks)); // half of the prompt is there: 1.5 + 1.5 = 3
  const auto c = p.choose(ranks, prompt(2048, blocks));
  EXPECT_EQ(c->rank, 0);
  EXPECT_DOUBLE_EQ(c->score, -3);
  EXPECT_EQ(c->cached_tokens, 1024u);
  p.on_rank_opened(0); // queue and KV of nothing: 2 + 2, and no prefix
  EXPECT_DOUBLE_EQ(p.choose(ranks, prompt(2048, blocks))->score, -4);
  EXPECT_EQ(p.choose(ranks, prompt(2048, blocks))->cached_tokens, 0u);
}

TEST(llm_d_rule, placements_change_nothing_until_a_report_and_equals_are_drawn) {
  llm_d p{policy_options{}};
  const auto ranks = equal_ranks(4);
  p.on_report(reported(1, 0, 0, 0));
  for (int i = 0; i < 20; ++i)
    p.on_placed(1, prompt(4000));
  for (const int n : chosen(p, ranks, prompt(100), 400))
    EXPECT_NEAR(n, 100, 40);
}

TEST(prefix_hash_rule, equal_beginnings_go_to_one_rank_and_move_only_when_it_is_missing) {
  prefix_hash p;
  const auto ranks = equal_ranks(8);
  std::vector<int> counts(8);
  for (std::uint64_t i = 0; i < 800; ++i) {
    const std::vector<std::uint64_t> blocks{7, 1000 + i, i};
    const std::vector<std::uint64_t> longer{7, 1000 + i, 5 * i, 9};
    const auto rank = p.choose(ranks, prompt(2000, blocks))->rank;
    EXPECT_EQ(p.choose(ranks, prompt(4000, longer))->rank, rank);
    ++counts[rank];
    auto fewer = ranks;
    fewer.erase(fewer.begin() + 3);
    const auto then = p.choose(fewer, prompt(2000, blocks))->rank;
    EXPECT_TRUE(rank == 3 ? then != 3 : then == rank) << "only the missing rank's move";
  }
  for (const int n : counts)
    EXPECT_NEAR(n, 100, 40);
}

TEST(random_rule, reaches_every_rank_and_is_the_same_for_the_same_seed) {
  random_rank a{policy_options{}};
  random_rank b{policy_options{}};
  const auto ranks = equal_ranks(4);
  const auto counts = chosen(a, ranks, prompt(1), 400);
  for (const int n : counts)
    EXPECT_NEAR(n, 100, 40);
  EXPECT_EQ(chosen(b, ranks, prompt(1), 400), counts);
}

} // namespace
} // namespace rankwise::core
