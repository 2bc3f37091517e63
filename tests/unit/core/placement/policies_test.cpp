#include "core/placement/policies/headroom.hpp"
#include "core/placement/policies/upstream.hpp"
#include "core/placement/policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace rankwise::core {
namespace {

std::vector<rank_view> equal_ranks(std::uint16_t count) {
  std::vector<rank_view> v(count);
  for (std::uint16_t i = 0; i < count; ++i) {
    v[i].rank = i;
    v[i].kv_capacity = 1'000'000;
    v[i].max_running = 256;
  }
  return v;
}

placement_request prompt(std::uint64_t tokens) {
  placement_request r;
  r.prompt_tokens = tokens;
  return r;
}

std::vector<int> spread(policy& p, const std::vector<rank_view>& ranks, int requests) {
  std::vector<int> counts(ranks.size());
  for (int i = 0; i < requests; ++i)
    ++counts[p.choose(ranks, prompt(100))->rank];
  return counts;
}

TEST(policies, every_name_makes_a_policy_of_that_name) {
  for (const auto name : policy_names()) {
    const auto p = make_policy(name, {});
    ASSERT_NE(p, nullptr) << name;
    EXPECT_EQ(p->name(), name);
  }
  EXPECT_EQ(make_policy("best", {}), nullptr);
  EXPECT_EQ(policy_names().size(), 17u);
}

TEST(policies, no_policy_chooses_among_no_ranks) {
  for (const auto name : policy_names())
    EXPECT_FALSE(make_policy(name, {})->choose({}, prompt(1)).has_value()) << name;
}

TEST(policies, equal_ranks_take_turns) {
  for (const std::string name : {"headroom", "round_robin", "follow_bootstrap_room"}) {
    auto p = make_policy(name, {});
    EXPECT_EQ(spread(*p, equal_ranks(2), 100), (std::vector<int>{50, 50})) << name;
    for (const int n : spread(*p, equal_ranks(8), 100)) {
      EXPECT_GE(n, 12) << name;
      EXPECT_LE(n, 13) << name;
    }
  }
}

TEST(policies, turns_go_on_when_a_rank_is_missing) {
  auto p = make_policy("round_robin", {});
  auto ranks = equal_ranks(4);
  ranks.erase(ranks.begin() + 1);
  std::vector<std::uint16_t> chosen;
  for (int i = 0; i < 6; ++i)
    chosen.push_back(p->choose(ranks, prompt(1))->rank);
  EXPECT_EQ(chosen, (std::vector<std::uint16_t>{0, 2, 3, 0, 2, 3}));
}

TEST(headroom, a_rank_whose_kv_is_full_is_never_chosen_while_another_has_room) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  ranks[0].tokens = 1'000'000;
  ranks[1].tokens = 900'000;
  ranks[1].requests = 255; // many requests do not matter beside memory
  ranks[0].requests = 1;
  ranks[1].share = 0.1; // nor does slow start
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(p.choose(ranks, prompt(1000))->rank, 1);
}

TEST(headroom, when_no_rank_has_room_the_least_overfull_one_is_taken) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  ranks[0].tokens = 3'000'000;
  ranks[1].tokens = 2'000'000;
  EXPECT_EQ(p.choose(ranks, prompt(1000))->rank, 1);
}

TEST(headroom, a_prompt_that_does_not_fit_a_smaller_rank_goes_to_the_larger_one) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  ranks[0].tokens = 300'000;
  ranks[1].tokens = 200'000; // faster, but full
  ranks[1].kv_capacity = 200'050;
  EXPECT_EQ(p.choose(ranks, prompt(100))->rank, 0);
}

TEST(headroom, tokens_that_are_still_to_be_prefilled_weigh_more) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  ranks[0].tokens = ranks[1].tokens = 10'000;
  ranks[0].requests = ranks[1].requests = 1;
  ranks[0].prefilling = 1;
  ranks[0].prefill_tokens = ranks[0].work_tokens = 10'000;
  EXPECT_EQ(p.choose(ranks, prompt(100))->rank, 1);
}

TEST(headroom, a_rank_in_slow_start_gets_less) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  ranks[0].share = 0.1;
  const auto r = prompt(1000);
  EXPECT_NEAR(*p.score_of(ranks[0], r), 10 * *p.score_of(ranks[1], r), 1e-9);
}

TEST(headroom, capacities_that_were_not_registered_do_not_divide_by_zero) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  for (auto& r : ranks)
    r.kv_capacity = r.max_running = 0;
  ranks[0].tokens = ranks[0].placed_tokens = 5000;
  EXPECT_EQ(p.choose(ranks, prompt(100))->rank, 1);
}

TEST(power_of_two, takes_the_better_of_two_and_reaches_every_rank) {
  auto p = make_policy("power_of_two", {});
  auto ranks = equal_ranks(8);
  ranks[3].tokens = 900'000;
  const auto counts = spread(*p, ranks, 800);
  EXPECT_EQ(counts[3], 0); // never the better one of two different ranks
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_TRUE(i == 3 || counts[i] > 50) << i;
  EXPECT_EQ(spread(*p, equal_ranks(1), 3), std::vector<int>{3});
}

TEST(follow_bootstrap_room, names_room_modulo_ranks_and_refuses_when_that_rank_is_missing) {
  auto p = make_policy("follow_bootstrap_room", {});
  auto ranks = equal_ranks(4);
  auto r = prompt(1);
  r.dp_size = 4;
  r.bootstrap_room = 7;
  EXPECT_EQ(p->choose(ranks, r)->rank, 3);
  r.bootstrap_room = 0x7fff'ffff'ffff'fffe;
  EXPECT_EQ(p->choose(ranks, r)->rank, 2);
  ranks.erase(ranks.begin() + 2);
  EXPECT_FALSE(p->choose(ranks, r).has_value());
}

load_report reported(std::uint16_t rank, std::uint32_t running, std::uint64_t kv_used) {
  load_report r;
  r.rank = {0, rank};
  r.num_running = running;
  r.kv_used_tokens = kv_used;
  return r;
}

TEST(upstream_rules, total_requests_takes_the_fewest_and_the_lowest_rank_wins_ties) {
  upstream_budget p{upstream_budget::rule::total_requests};
  const auto ranks = equal_ranks(3);
  std::vector<std::uint16_t> chosen;
  for (int i = 0; i < 4; ++i) {
    chosen.push_back(p.choose(ranks, prompt(10))->rank);
    p.on_placed(chosen.back(), prompt(10));
  }
  EXPECT_EQ(chosen, (std::vector<std::uint16_t>{0, 1, 2, 0}));
  p.on_report(reported(0, 0, 0)); // a report overwrites what was charged
  EXPECT_EQ(p.choose(ranks, prompt(10))->rank, 0);
}

TEST(upstream_rules, total_tokens_charges_the_prompt_at_placement) {
  upstream_budget p{upstream_budget::rule::total_tokens};
  const auto ranks = equal_ranks(2);
  p.on_placed(0, prompt(1000));
  EXPECT_EQ(p.choose(ranks, prompt(1))->rank, 1);
  p.on_placed(1, prompt(2000));
  EXPECT_EQ(p.choose(ranks, prompt(1))->rank, 0);
}

TEST(upstream_rules, total_tokens_uncharged_sends_all_to_rank_0_when_no_report_comes) {
  auto p = make_policy("total_tokens_uncharged", {});
  const auto ranks = equal_ranks(4);
  for (int i = 0; i < 20; ++i) {
    const auto c = p->choose(ranks, prompt(1000));
    EXPECT_EQ(c->rank, 0);
    p->on_placed(c->rank, prompt(1000));
  }
  p->on_report(reported(0, 3, 500));
  EXPECT_EQ(p->choose(ranks, prompt(1000))->rank, 1);
}

} // namespace
} // namespace rankwise::core
