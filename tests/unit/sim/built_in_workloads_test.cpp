#include "sim/built_in_workloads.hpp"

#include "sim/pool_simulation.hpp"
#include "sim/prompt_ids.hpp"
#include "sim/summary.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace rankwise::sim {
namespace {

built_in_choice many(std::size_t requests, std::uint64_t seed = 1) {
  built_in_choice c;
  c.requests = requests;
  c.seed = seed;
  return c;
}

TEST(built_in_workloads, each_is_the_same_for_a_seed_and_another_for_another) {
  for (const auto name : built_in_workload_names) {
    const auto w = built_in_workload(name, many(2000));
    ASSERT_TRUE(w) << name;
    EXPECT_EQ(w->requests.size(), 2000U) << name;
    EXPECT_EQ(w->requests, built_in_workload(name, many(2000))->requests) << name;
    EXPECT_NE(w->requests, built_in_workload(name, many(2000, 2))->requests) << name;
  }
  EXPECT_FALSE(built_in_workload("heavy", many(1)));
}

TEST(built_in_workloads, each_begins_at_0_in_order_of_arrival_and_follows_earlier_requests_only) {
  for (const auto name : built_in_workload_names)
    for (const std::size_t requests : {1U, 7U, 3000U}) {
      const auto w = *built_in_workload(name, many(requests));
      ASSERT_EQ(w.requests.size(), requests) << name;
      EXPECT_EQ(w.requests.front().arrival_s, 0) << name;
      EXPECT_TRUE(std::is_sorted(w.requests.begin(), w.requests.end(), [](const auto& a, const auto& b) {
        return a.arrival_s < b.arrival_s;
      })) << name;
      EXPECT_NO_THROW(request_followers{w}) << name;
      for (const auto& r : w.requests) {
        ASSERT_GE(r.input_tokens, 1U) << name;
        ASSERT_GE(r.output_tokens, 1U) << name;
        if (r.after) {
          ASSERT_NEAR(r.arrival_s, w.requests[*r.after].arrival_s + r.think_s, 1e-9)
              << name << ": the earliest possible";
        }
      }
    }
}

TEST(built_in_workloads, open_ones_come_as_often_as_asked) {
  for (const std::string name : {"mixed", "giants", "shared-prompts", "agents"}) {
    auto c = many(20'000);
    c.requests_per_s = 50;
    EXPECT_NEAR(built_in_workload(name, c)->span_s(), 400, 40) << name;
  }
}

TEST(built_in_workloads, one_request_of_so_many_is_a_giant_and_the_others_are_those_of_the_mix) {
  giants_workload_options o;
  o.mix.requests = 1000;
  o.every = 40;
  const auto giants = giants_workload(o);
  const auto mix = mixed_workload(o.mix);
  std::size_t count = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    if (i % 40 == 20) {
      EXPECT_EQ(giants.requests[i].input_tokens, 100'000U);
      ++count;
    } else {
      EXPECT_EQ(giants.requests[i], mix.requests[i]) << i;
    }
  }
  EXPECT_EQ(count, 25U);
}

TEST(built_in_workloads, shared_system_prompts_are_common_to_many_and_the_rest_is_ones_own) {
  const auto w = shared_prompts_workload({5000});
  std::map<std::uint64_t, std::size_t> by_first;
  std::map<std::uint64_t, std::size_t> by_last;
  for (const auto& r : w.requests) {
    ASSERT_EQ(r.prefix_blocks.size(), (r.input_tokens + 511) / 512);
    ++by_first[r.prefix_blocks.front()];
    ++by_last[r.prefix_blocks.back()];
  }
  EXPECT_EQ(by_first.size(), 16U) << "system prompts";
  EXPECT_EQ(by_last.size(), 5000U);
  EXPECT_GT(by_first.begin()->second, 4 * by_first.rbegin()->second) << "some are much more frequent";
}

TEST(built_in_workloads, a_turn_of_an_agent_begins_with_the_prompt_before_and_has_room_for_its_output) {
  const auto w = agents_workload({3000});
  std::size_t follow = 0;
  std::set<std::uint32_t> followed;
  for (std::size_t i = 0; i < w.requests.size(); ++i) {
    const auto& r = w.requests[i];
    ASSERT_LE(r.input_tokens, 32'768U);
    if (!r.after)
      continue;
    ++follow;
    ASSERT_TRUE(followed.insert(*r.after).second) << "one turn at a time";
    const auto& before = w.requests[*r.after];
    ASSERT_GT(r.input_tokens, before.input_tokens + before.output_tokens);
    ASSERT_TRUE(std::equal(before.prefix_blocks.begin(), before.prefix_blocks.end(), r.prefix_blocks.begin()));
  }
  EXPECT_GT(follow, 2000U);
  const auto turn =
      std::find_if(w.requests.begin(), w.requests.end(), [](const auto& r) { return r.after.has_value(); });
  const auto before = prompt_ids(w.requests[*turn->after], w.block_tokens, 1, *turn->after);
  const auto ids = prompt_ids(*turn, w.block_tokens, 1, static_cast<std::uint64_t>(turn - w.requests.begin()));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), ids.begin())) << "token by token";
}

TEST(built_in_workloads, a_closed_loop_has_as_many_chains_as_clients) {
  closed_loop_workload_options o;
  o.mix.requests = 1000;
  o.clients = 30;
  const auto w = closed_loop_workload(o);
  EXPECT_EQ(std::count_if(w.requests.begin(), w.requests.end(), [](const auto& r) { return !r.after; }), 30);
  std::set<std::uint32_t> followed;
  for (const auto& r : w.requests) {
    EXPECT_TRUE(!r.after || followed.insert(*r.after).second);
  }
}

TEST(workload_limits, what_follows_a_request_that_is_cut_off_is_cut_off_too_and_clients_think_faster) {
  const auto w = agents_workload({1000});
  for (const workload_limits& limits : {workload_limits{2, 300}, workload_limits{2, 1'000'000, w.span_s() / 5}}) {
    const auto part = limited(w, limits);
    ASSERT_GT(part.requests.size(), 100U);
    ASSERT_LT(part.requests.size(), 1000U);
    ASSERT_NO_THROW(request_followers{part});
    for (std::size_t i = 0; i < part.requests.size(); ++i) {
      EXPECT_EQ(part.requests[i].after, w.requests[i].after);
      EXPECT_EQ(part.requests[i].think_s, w.requests[i].think_s / 2);
    }
  }
}

TEST(request_followers, are_those_that_name_the_request_and_a_later_one_is_refused) {
  workload w;
  w.requests.resize(4);
  w.requests[1].after = 0;
  w.requests[3].after = 0;
  const request_followers f(w);
  EXPECT_EQ(std::vector(f.of(0).begin(), f.of(0).end()), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_TRUE(f.of(1).empty());
  EXPECT_TRUE(f.of(3).empty());
  EXPECT_EQ(f.count(), 2U);
  w.requests[2].after = 2;
  try {
    static_cast<void>(request_followers{w});
    FAIL() << "it follows itself";
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "request 2 of the workload: after: 2 is not an earlier request");
  }
}

// -- on a simulated pool
// -------------------------------------------------------------------------------------------------------------

simulation_options small_pool() {
  simulation_options o;
  o.ranks = 3;
  o.engine.prefix_block_tokens = 512;
  o.pool.waiting_time_max = std::chrono::hours{1};
  o.time_limit_s = 36'000;
  return o;
}

/// Of requests that ended at a rank.
void expect_thought(const workload& w, const simulation_result& r) {
  for (std::size_t i = 0; i < w.requests.size(); ++i) {
    const auto& asked = w.requests[i];
    const auto& got = r.requests[i];
    ASSERT_GE(got.arrival_s, 0) << i;
    if (!asked.after) {
      ASSERT_NEAR(got.arrival_s, asked.arrival_s, 1e-6) << i;
    } else if (r.requests[*asked.after].end_s >= 0) {
      ASSERT_NEAR(got.arrival_s, r.requests[*asked.after].end_s + asked.think_s, 1e-6) << i;
    }
  }
}

TEST(following_requests, come_their_think_time_after_the_end_of_the_one_before_in_every_shape) {
  for (const auto shape : {pool_shape::unified, pool_shape::decode, pool_shape::pair})
    for (const bool lockstep : {false, true})
      for (const std::string name : {"agents", "closed-loop"}) {
        auto o = small_pool();
        o.shape = shape;
        o.lockstep = lockstep;
        o.front_ends = 2;
        auto c = many(400);
        c.requests_per_s = 5;
        c.clients = 20;
        const auto w = *built_in_workload(name, c);
        const auto r = simulate(w, o);
        ASSERT_NO_FATAL_FAILURE(expect_thought(w, r)) << name << " " << to_string(shape);
        EXPECT_EQ(r.event_hash, simulate(w, o).event_hash);
        EXPECT_EQ(r.charges_left, 0U);
        const auto s = summarise(r, o);
        EXPECT_EQ(s.completed, 400U) << name << " " << to_string(shape);
      }
}

TEST(following_requests, a_closed_loop_never_has_more_requests_open_than_clients) {
  auto c = many(500);
  c.clients = 12;
  c.think_s = 0.1;
  const auto w = *built_in_workload("closed-loop", c);
  const auto r = simulate(w, small_pool());
  std::vector<std::pair<double, int>> changes; // ends before arrivals of the same time
  for (const auto& x : r.requests) {
    changes.emplace_back(x.arrival_s, 1);
    changes.emplace_back(x.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());
  int open = 0;
  int most = 0;
  for (const auto& [at, by] : changes)
    most = std::max(most, open += by);
  EXPECT_EQ(most, 12);
}

TEST(following_requests, a_client_goes_on_when_its_request_was_lost_or_refused) {
  auto o = small_pool();
  o.ranks = 1;
  o.pool.waiting_time_max = std::chrono::milliseconds{500};
  o.happenings = {{10, rank_happening::kind::dies, 0, 1}, {20, rank_happening::kind::joins, 0, 1}};
  closed_loop_workload_options loop;
  loop.mix.requests = 600;
  loop.clients = 8;
  loop.think_s = 1;
  const auto w = closed_loop_workload(loop);
  const auto r = simulate(w, o);
  ASSERT_NO_FATAL_FAILURE(expect_thought(w, r));
  const auto s = summarise(r, o);
  EXPECT_GT(s.refused, 5U);
  EXPECT_GT(s.failed, 0U);
  EXPECT_GT(s.completed, 400U);
  EXPECT_EQ(s.completed + s.refused + s.failed, 600U);
  EXPECT_EQ(r.held_left, 0U);
  for (std::size_t i = 0; i < w.requests.size(); ++i)
    if (w.requests[i].after && r.requests[*w.requests[i].after].refused) {
      const auto since = r.requests[i].arrival_s - r.requests[*w.requests[i].after].arrival_s;
      EXPECT_GE(since, w.requests[i].think_s - 1e-6);
      EXPECT_LE(since, w.requests[i].think_s + 0.76) << "the wait's bound and its clock of 250 ms";
    }
}

TEST(following_requests, those_that_the_time_limit_keeps_away_have_no_arrival) {
  auto o = small_pool();
  o.time_limit_s = 30;
  auto c = many(2000);
  c.clients = 20;
  const auto w = *built_in_workload("closed-loop", c);
  const auto r = simulate(w, o);
  const auto s = summarise(r, o);
  const auto absent =
      std::count_if(r.requests.begin(), r.requests.end(), [](const auto& x) { return x.arrival_s < 0; });
  EXPECT_GT(absent, 500);
  EXPECT_LE(s.completed + static_cast<std::size_t>(absent), 2000U);
  EXPECT_GT(s.completed, 20U);
}

TEST(following_requests, the_prefix_cache_has_most_of_an_agents_prompt) {
  auto o = small_pool();
  agents_workload_options agents;
  agents.requests = 600;
  agents.requests_per_s = 4;
  const auto w = agents_workload(agents);
  EXPECT_GT(simulate(w, o).prefix_hit_share, 0.6);
  o.engine.prefix_block_tokens = 0;
  EXPECT_EQ(simulate(w, o).prefix_hit_share, 0);
}

TEST(following_requests, saturation_is_that_of_the_earliest_arrivals) {
  const auto o = small_pool();
  auto w = agents_workload({500});
  const auto speed = saturation_speed(w, o);
  EXPECT_GT(speed, 0);
  for (auto& r : w.requests)
    r.after.reset();
  EXPECT_EQ(saturation_speed(w, o), speed);
  for (auto& r : w.requests)
    r.arrival_s = 0;
  EXPECT_EQ(saturation_speed(w, o), 1) << "no arrivals to hasten";
}

} // namespace
} // namespace rankwise::sim
