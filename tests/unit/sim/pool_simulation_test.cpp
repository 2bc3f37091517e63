#include "sim/pool_simulation.hpp"

#include "core/placement/policies/policy_around.hpp"
#include "sim/built_in_workloads.hpp"
#include "sim/random.hpp"
#include "sim/request_classes.hpp"
#include "sim/summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace rankwise::sim {
namespace {

using std::chrono::milliseconds;
using testing::Each;

workload_request asks(double arrival_s, std::uint32_t input, std::uint32_t output) {
  return {arrival_s, input, output, {}};
}

/// Poisson arrivals of prompts of `input` tokens on average, and as many steps of `output`.
workload steady(std::size_t requests, double per_s, std::uint32_t input, std::uint32_t output, std::uint64_t seed = 1) {
  random_source random{seed};
  workload w;
  double at = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    const auto prompt = 1 + static_cast<std::uint32_t>(random.below(2 * input));
    w.requests.push_back(asks(at, prompt, 1 + static_cast<std::uint32_t>(random.below(2 * output))));
    at += random.exponential(1 / per_s);
  }
  return w;
}

constexpr pool_shape shapes[] = {pool_shape::unified, pool_shape::decode, pool_shape::pair};

simulation_options options_of(pool_shape shape, bool lockstep = false, std::uint16_t ranks = 4) {
  simulation_options o;
  o.shape = shape;
  o.lockstep = lockstep;
  o.ranks = ranks;
  o.engine.prefix_block_tokens = 512; // as workload::block_tokens
  o.pool.waiting_time_max = std::chrono::hours{1};
  o.time_limit_s = 36'000; // what would go on for ever fails instead
  return o;
}

/// Each request ended once, all that it asked for was generated, in order of time; nothing is left behind.
void expect_conserved(const workload& w, const simulation_result& r, const std::string& what) {
  ASSERT_EQ(r.requests.size(), w.requests.size()) << what;
  std::uint64_t gaps = 0;
  for (std::size_t i = 0; i < r.requests.size(); ++i) {
    const auto& one = r.requests[i];
    const auto name = what + ", request " + std::to_string(i);
    ASSERT_NEAR(one.arrival_s, w.requests[i].arrival_s, 1e-6) << name;
    if (one.refused) {
      ASSERT_LT(one.end_s, 0) << name;
      continue;
    }
    ASSERT_GE(one.end_s, one.arrival_s) << name;
    gaps += one.generated > 0 ? one.generated - 1 : 0;
    if (one.failed)
      continue;
    ASSERT_EQ(one.generated, w.requests[i].output_tokens) << name;
    ASSERT_GE(one.bound_s, one.arrival_s) << name;
    ASSERT_GT(one.first_token_s, one.bound_s) << name;
    ASSERT_GE(one.end_s, one.first_token_s) << name;
    ASSERT_LT(one.cached, one.input_tokens) << name;
  }
  ASSERT_EQ(r.gaps.count(), gaps) << what;
  ASSERT_EQ(r.charges_left, 0u) << what;
  ASSERT_EQ(r.held_left, 0u) << what;
}

std::size_t count_failed(const simulation_result& r) {
  return static_cast<std::size_t>(
      std::count_if(r.requests.begin(), r.requests.end(), [](const auto& x) { return x.failed; }));
}

std::size_t count_refused(const simulation_result& r) {
  return static_cast<std::size_t>(
      std::count_if(r.requests.begin(), r.requests.end(), [](const auto& x) { return x.refused; }));
}

/// Share of the requests bound in [from, to) that `rank` got, of the pool that prefills.
double share_of(const simulation_result& r, const simulation_options& o, std::uint16_t rank, double from, double to) {
  double all = 0;
  double mine = 0;
  for (const auto& x : r.requests)
    if (x.bound_s >= from && x.bound_s < to) {
      all += 1;
      mine += (o.shape == pool_shape::pair ? x.prefill_rank : x.rank) == rank ? 1 : 0;
    }
  return all == 0 ? 0 : mine / all;
}

// -- the same again, and nothing lost
// ---------------------------------------------------------------------------

/// One of the many set-ups that a seed stands for.
struct generated_case {
  workload load;
  simulation_options options;
  std::string what;
};

generated_case generate(std::uint64_t seed, bool with_happenings) {
  random_source random{seed};
  generated_case c;
  auto& o = c.options;
  const auto shape = shapes[random.below(3)]; // one by one: arguments are drawn in no order
  const bool lockstep = random.below(2) == 0;
  o = options_of(shape, lockstep, static_cast<std::uint16_t>(1 + random.below(5)));
  const auto names = core::policy_names();
  o.pool.policy = names[random.below(names.size())];
  o.pool.tuning.headroom_credit_chunks = random.below(2) == 0 ? 0.2 : 3;
  o.pool.waiting_time_max = random.below(3) == 0 ? core::duration{milliseconds{700}} : std::chrono::hours{1};
  o.pool.waiting_requests_max = random.below(3) == 0 ? 3 : 1024;
  o.engine.chunk_tokens = random.below(2) == 0 ? 512 : 8192;
  o.engine.kv_capacity_tokens = random.below(2) == 0 ? 4000 : 1 << 20;
  o.engine.new_token_ratio = random.below(2) == 0 ? 0 : 0.3;
  o.engine.running_requests_max = random.below(3) == 0 ? 4 : 256;
  o.engine.step_jitter = random.below(2) == 0 ? 0.2 : 0;
  o.front_ends = static_cast<std::uint32_t>(1 + random.below(3));
  o.prefill_ranks = static_cast<std::uint16_t>(random.below(4));
  o.load_path.every_steps = static_cast<std::uint32_t>(random.below(3));
  o.load_path.on_prefill = random.below(2) == 0;
  o.load_path.jitter = random.below(2) == 0 ? 0.9 : 0;
  o.load_path.loss = random.below(2) == 0 ? 0.2 : 0;
  o.freeze_detection = random.below(2) == 0 ? milliseconds{750} : milliseconds{100};
  o.oracle = random.below(4) == 0;
  o.seed = seed;
  const auto requests = 20 + random.below(60);
  c.load = steady(requests, 40, 800, 25, seed);
  for (std::size_t i = 0; i < c.load.requests.size(); ++i) {
    auto& r = c.load.requests[i];
    if (random.below(2) == 0) // shared beginnings
      for (std::uint64_t b = 0; b * 512 < r.input_tokens; ++b)
        r.prefix_blocks.push_back(b < 2 ? b : 1000 * (i + 1) + b);
  }
  c.what = "seed " + std::to_string(seed) + " " + std::string{to_string(o.shape)} +
           (o.lockstep ? " lockstep " : " independent ") + o.pool.policy;
  if (with_happenings) {
    const auto first = o.shape == pool_shape::pair && o.prefill_ranks > 0 ? o.prefill_ranks : o.ranks;
    const double span = c.load.span_s();
    for (auto n = 1 + random.below(4); n > 0; --n) {
      const auto rank = static_cast<std::uint16_t>(random.below(first));
      // Often at the very moment of an arrival.
      const double at =
          random.below(2) == 0 ? random.uniform(0, span) : c.load.requests[random.below(requests)].arrival_s + 5e-4;
      using kind = rank_happening::kind;
      rank_happening h{at, kind{static_cast<std::uint8_t>(random.below(5))}, rank, 3};
      if (o.shape == pool_shape::pair && random.below(2) == 0) {
        h.pool = core::pool_role::decode;
        h.rank = static_cast<std::uint16_t>(random.below(o.ranks));
      }
      o.happenings.push_back(h);
      if (random.below(2) == 0) {
        h.at_s += random.uniform(0, 0.5);
        h.what = kind::joins;
        o.happenings.push_back(h);
      }
    }
  }
  return c;
}

TEST(pool_simulation, the_same_seed_gives_the_same_events_over_200_seeds) {
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto c = generate(seed, seed % 2 == 0);
    const auto first = simulate(c.load, c.options);
    const auto second = simulate(c.load, c.options);
    ASSERT_EQ(first.event_hash, second.event_hash) << c.what;
    ASSERT_EQ(first.makespan_s, second.makespan_s) << c.what;
    ASSERT_EQ(first.steps, second.steps) << c.what;
    hashes.push_back(first.event_hash);
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end()) << "and another one gives others";
}

TEST(pool_simulation, every_request_ends_once_and_no_charge_is_left) {
  std::uint64_t held = 0;
  std::uint64_t retracted = 0;
  double cached = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const auto c = generate(seed, false);
    const auto r = simulate(c.load, c.options);
    ASSERT_NO_FATAL_FAILURE(expect_conserved(c.load, r, c.what));
    ASSERT_EQ(count_failed(r), 0u) << c.what;
    ASSERT_EQ(count_refused(r), 0u) << c.what;
    held += r.held_most;
    retracted += r.retractions;
    cached += r.prefix_hit_share;
  }
  EXPECT_GT(held, 0u) << "these are part of it";
  EXPECT_GT(retracted, 20u);
  EXPECT_GT(cached, 0);
}

TEST(pool_simulation, every_request_ends_once_whatever_happens_to_ranks) {
  std::size_t failed = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const auto c = generate(seed, true);
    const auto r = simulate(c.load, c.options);
    ASSERT_NO_FATAL_FAILURE(expect_conserved(c.load, r, c.what));
    for (const auto& one : r.requests)
      if (one.failed) {
        ASSERT_GE(one.first_token_s, 0) << c.what << ": it had no token, and could move";
        ++failed;
      }
  }
  EXPECT_GT(failed, 100u);
}

TEST(pool_simulation, a_prompt_that_no_rank_can_hold_fails_alone) {
  for (const auto shape : shapes) {
    auto o = options_of(shape);
    o.engine.kv_capacity_tokens = 10'000;
    workload w;
    w.requests = {asks(0, 100, 5), asks(0.1, 20'000, 5), asks(0.2, 100, 5)};
    const auto r = simulate(w, o);
    expect_conserved(w, r, std::string{to_string(shape)});
    EXPECT_EQ(count_failed(r), 1u) << to_string(shape);
    EXPECT_TRUE(r.requests[1].failed) << to_string(shape);
  }
}

TEST(pool_simulation, no_requests_and_no_ranks_are_no_riddle) {
  EXPECT_EQ(simulate(workload{}, options_of(pool_shape::unified)).steps, 0u);
  auto o = options_of(pool_shape::unified);
  o.ranks = 0;
  EXPECT_THROW(static_cast<void>(simulate(workload{}, o)), std::invalid_argument);
}

// -- what happens to ranks
// --------------------------------------------------------------------------------------

TEST(happenings, when_a_rank_dies_requests_without_a_token_move_and_complete_and_those_with_one_fail) {
  using kind = rank_happening::kind;
  for (const bool lockstep : {false, true})
    for (const auto shape : shapes) {
      const auto what = std::string{to_string(shape)} + (lockstep ? " lockstep" : "");
      auto o = options_of(shape, lockstep);
      const auto w = steady(400, 20, 2000, 50);
      o.happenings = {{10, kind::dies, 1, 1}};
      const auto r = simulate(w, o);
      expect_conserved(w, r, what);
      EXPECT_EQ(count_refused(r), 0u) << what;
      const auto rank_of = [&](const request_result& x) { return shape == pool_shape::pair ? x.prefill_rank : x.rank; };
      std::size_t moved = 0;
      for (const auto& x : r.requests) {
        if (x.failed) {
          EXPECT_EQ(rank_of(x), 1) << what;
          EXPECT_GE(x.first_token_s, 0) << what;
          EXPECT_NEAR(x.end_s, 10, 1e-6) << what;
        }
        EXPECT_FALSE(rank_of(x) == 1 && x.end_s > 10.01 && x.first_token_s > 10.01) << what;
        moved += x.bound_s <= 10 && x.first_token_s > 10 ? 1 : 0;
      }
      // The token of a pair comes from its decode rank, which lives.
      EXPECT_EQ(count_failed(r) > 0, shape != pool_shape::pair) << what;
      EXPECT_GT(moved, 0u) << what;
      EXPECT_EQ(share_of(r, o, 1, 10.001, 1e9), 0) << what;
    }
}

TEST(happenings, requests_on_their_way_to_a_rank_that_dies_arrive_once_elsewhere) {
  for (const auto shape : shapes) {
    auto o = options_of(shape);
    workload w;
    for (int i = 0; i < 40; ++i)
      w.requests.push_back(asks(1, 500, 5));
    o.happenings = {{1.0005, rank_happening::kind::dies, 2, 1}}; // a placement takes 1 ms
    const auto r = simulate(w, o);
    expect_conserved(w, r, std::string{to_string(shape)});
    EXPECT_EQ(count_failed(r), 0u) << to_string(shape);
  }
}

TEST(happenings, the_share_of_a_rank_that_becomes_twice_as_slow_falls_within_2_s) {
  auto o = options_of(pool_shape::unified);
  const auto w = steady(1200, 15, 2000, 80);
  o.happenings = {{30, rank_happening::kind::slows, 2, 2}};
  const auto r = simulate(w, o);
  expect_conserved(w, r, "slow");
  // Of the prompt tokens: while requests wait, the slow rank gets many short ones.
  const auto tokens_there = [&](double from, double to) {
    double all = 0;
    double there = 0;
    for (const auto& x : r.requests)
      if (x.bound_s >= from && x.bound_s < to) {
        all += x.input_tokens;
        there += x.rank == 2 ? x.input_tokens : 0;
      }
    return there / all;
  };
  EXPECT_NEAR(tokens_there(5, 30), 0.25, 0.05);
  EXPECT_LT(tokens_there(32, 60), 0.2);
}

TEST(happenings, a_rank_that_joins_gets_work_and_one_that_drains_gets_none) {
  using kind = rank_happening::kind;
  for (const bool lockstep : {false, true})
    for (const auto shape : shapes) {
      const auto what = std::string{to_string(shape)} + (lockstep ? " lockstep" : "");
      auto o = options_of(shape, lockstep);
      const auto w = steady(500, 20, 1000, 30);
      o.happenings = {{0, kind::dies, 1, 1}, {8, kind::joins, 1, 1}, {12, kind::drains, 3, 1}};
      const auto r = simulate(w, o);
      expect_conserved(w, r, what);
      EXPECT_EQ(share_of(r, o, 1, 0.1, 8), 0) << what;
      EXPECT_GT(share_of(r, o, 1, 10, 25), 0.2) << what; // after its slow start
      EXPECT_GT(share_of(r, o, 3, 0.1, 12), 0.2) << what;
      EXPECT_EQ(share_of(r, o, 3, 12.001, 1e9), 0) << what;
      EXPECT_EQ(count_failed(r), 0u) << what << ": what is on a draining rank ends there";
    }
}

TEST(happenings, a_rank_that_returns_is_another_one_and_starts_slowly) {
  using kind = rank_happening::kind;
  auto o = options_of(pool_shape::unified);
  o.load_path.delay = std::chrono::seconds{1}; // the old one's reports come after its return
  o.happenings = {{5, kind::dies, 1, 1}, {5.2, kind::joins, 1, 1}};
  const auto w = steady(1200, 100, 300, 10);
  const auto r = simulate(w, o);
  expect_conserved(w, r, "returns");
  EXPECT_NEAR(share_of(r, o, 1, 1, 5), 0.25, 0.05);
  EXPECT_LT(share_of(r, o, 1, 5.2, 5.7), 0.15);
  EXPECT_NEAR(share_of(r, o, 1, 8, 12), 0.25, 0.05);
}

TEST(happenings, a_frozen_rank_says_nothing_more_and_what_hangs_there_is_found_after_the_detection_time) {
  using kind = rank_happening::kind;
  for (const bool lockstep : {false, true})
    for (const auto shape : shapes) {
      const auto what = std::string{to_string(shape)} + (lockstep ? " lockstep" : "");
      auto o = options_of(shape, lockstep);
      o.freeze_detection = milliseconds{2500};
      const auto w = steady(400, 12, 2000, 50);
      o.happenings = {{10, kind::freezes, 1, 1}};
      const auto r = simulate(w, o);
      expect_conserved(w, r, what);
      const auto rank_of = [&](const request_result& x) { return shape == pool_shape::pair ? x.prefill_rank : x.rank; };
      std::size_t moved = 0;
      for (const auto& x : r.requests) {
        if (x.failed) {
          EXPECT_EQ(rank_of(x), 1) << what;
          EXPECT_NEAR(x.end_s, 12.5, 1e-6) << what;
          EXPECT_LE(x.first_token_s, 10) << what << ": it got no token from a frozen rank";
        }
        // A decode leg gets its token after its prefill rank has handed over the KV.
        if (shape != pool_shape::pair) {
          EXPECT_FALSE(rank_of(x) == 1 && x.first_token_s > 10) << what;
        }
        EXPECT_FALSE(rank_of(x) == 1 && x.bound_s > 12.5) << what;
        moved += x.bound_s < 12.5 && x.bound_s > 10 && x.first_token_s >= 12.499 ? 1 : 0;
      }
      EXPECT_EQ(count_failed(r) > 0, shape != pool_shape::pair) << what;
      EXPECT_GT(moved, 0u) << what << ": what it got while nobody knew";
      if (lockstep && shape == pool_shape::unified) {
        for (const auto& x : r.requests)
          EXPECT_FALSE(x.first_token_s > 10 && x.first_token_s < 12.499) << "all wait for it in the common step";
      }
      o.happenings[0].what = kind::dies;
      EXPECT_LT(summarise(simulate(w, o), o).ttft_p99_s, summarise(r, o).ttft_p99_s) << what;
    }
}

TEST(happenings, a_frozen_rank_that_dies_first_is_not_taken_down_a_second_time) {
  using kind = rank_happening::kind;
  auto o = options_of(pool_shape::unified);
  o.freeze_detection = std::chrono::seconds{3};
  // The one that joins freezes as well, and has its own time.
  o.happenings = {{5, kind::freezes, 1, 1},   {5.2, kind::dies, 1, 1},  {5.3, kind::joins, 1, 1},
                  {10, kind::freezes, 2, 1},  {10.4, kind::dies, 2, 1}, {10.5, kind::joins, 2, 1},
                  {12.9, kind::freezes, 2, 1}};
  const auto w = steady(1200, 60, 300, 20);
  const auto r = simulate(w, o);
  expect_conserved(w, r, "freezes");
  EXPECT_GT(share_of(r, o, 1, 8, 20), 0.2);
  std::size_t last = 0;
  for (const auto& x : r.requests) {
    const double ends[] = {5.2, 10.4, 15.9};
    const auto* end =
        std::find_if(std::begin(ends), std::end(ends), [&](double at) { return std::abs(x.end_s - at) < 1e-6; });
    EXPECT_TRUE(!x.failed || end != std::end(ends)) << x.end_s;
    last += x.failed && end == ends + 2 ? 1 : 0;
  }
  EXPECT_GT(last, 0u);
}

TEST(happenings, a_frozen_rank_does_not_even_refuse) {
  using kind = rank_happening::kind;
  auto o = options_of(pool_shape::unified, false, 1);
  o.engine.kv_capacity_tokens = 10'000;
  workload w;
  w.requests = {asks(0, 100, 5), asks(1.5, 20'000, 5), asks(6, 100, 5)};
  o.freeze_detection = std::chrono::seconds{3};
  o.happenings = {{1, kind::freezes, 0, 1}, {5, kind::joins, 0, 1}};
  const auto r = simulate(w, o);
  EXPECT_GE(r.requests[1].bound_s, 1.5);
  EXPECT_LT(r.requests[1].bound_s, 4) << "it was there";
  EXPECT_TRUE(r.requests[1].refused) << "there was no other rank when it was found";
  EXPECT_LT(r.requests[1].end_s, 0);
  EXPECT_EQ(r.requests[2].generated, 5u);
}

TEST(happenings, a_decode_rank_of_a_pair_dies_freezes_drains_and_joins_as_any_other) {
  using kind = rank_happening::kind;
  for (const bool lockstep : {false, true})
    for (const auto what : {kind::dies, kind::freezes, kind::drains}) {
      const auto name = std::to_string(static_cast<int>(what)) + (lockstep ? " lockstep" : "");
      auto o = options_of(pool_shape::pair, lockstep);
      o.prefill_ranks = 2; // rank 3 is one of the decode pool only
      o.happenings = {{10, what, 3, 1, core::pool_role::decode}, {15, kind::joins, 3, 1, core::pool_role::decode}};
      const auto w = steady(500, 15, 1500, 150);
      const auto r = simulate(w, o);
      expect_conserved(w, r, name);
      EXPECT_EQ(count_refused(r), 0u) << name;
      const auto decoded_there = [&](double from, double to) {
        return std::count_if(r.requests.begin(), r.requests.end(),
                             [&](const auto& x) { return x.rank == 3 && x.bound_s > from && x.bound_s < to; });
      };
      EXPECT_GT(decoded_there(0, 10), 10) << name;
      EXPECT_EQ(decoded_there(10.76, 15), 0) << name;
      EXPECT_GT(decoded_there(16, 30), 10) << name;
      const double lost_at = what == kind::dies ? 10 : 10.75;
      for (const auto& x : r.requests)
        if (x.failed) {
          EXPECT_EQ(x.rank, 3) << name;
          EXPECT_NEAR(x.end_s, lost_at, 1e-6) << name;
        }
      EXPECT_EQ(count_failed(r) > 0, what != kind::drains) << name;
    }
}

TEST(happenings, when_no_decode_rank_is_left_nothing_of_a_pair_is_charged_or_computed) {
  auto o = options_of(pool_shape::pair, false, 1);
  o.prefill_ranks = 2;
  o.happenings = {{2, rank_happening::kind::dies, 0, 1, core::pool_role::decode}};
  const auto w = steady(100, 20, 1000, 10);
  const auto r = simulate(w, o);
  expect_conserved(w, r, "no decode rank"); // its charges too
  EXPECT_GT(count_refused(r), 30u);
  EXPECT_LT(r.makespan_s, 10);
}

TEST(happenings, a_drained_rank_that_joins_takes_work_at_once_and_keeps_what_it_has) {
  using kind = rank_happening::kind;
  for (const auto shape : shapes) {
    auto o = options_of(shape);
    o.happenings = {{8, kind::drains, 3, 1}, {9, kind::joins, 3, 1}, {9, kind::drains, 1, 1}, {12, kind::joins, 2, 1}};
    const auto w = steady(500, 20, 1000, 30);
    const auto r = simulate(w, o);
    expect_conserved(w, r, std::string{to_string(shape)});
    EXPECT_EQ(count_failed(r), 0u) << to_string(shape);
    EXPECT_EQ(share_of(r, o, 3, 8.001, 9), 0) << to_string(shape);
    EXPECT_GT(share_of(r, o, 3, 9, 11), 0.2) << to_string(shape);
    EXPECT_EQ(share_of(r, o, 1, 9.001, 1e9), 0) << to_string(shape);
  }
}

TEST(happenings, when_the_last_rank_dies_requests_are_refused_and_do_not_hang) {
  for (const auto shape : shapes) {
    auto o = options_of(shape, false, 1);
    o.pool.waiting_time_max = std::chrono::seconds{2};
    const auto w = steady(60, 20, 1000, 10);
    o.happenings = {{1, rank_happening::kind::dies, 0, 1}};
    const auto r = simulate(w, o);
    expect_conserved(w, r, std::string{to_string(shape)});
    EXPECT_GT(count_refused(r), 20u) << to_string(shape);
  }
}

// -- classes and deadlines
// ------------------------------------------------------------------------------------------------

/// More than the ranks can do, of which a part has a class or a deadline.
simulation_result overloaded(const request_class_options& classes,
                             simulation_options o = options_of(pool_shape::unified)) {
  auto w = steady(1500, 8, 6000, 20);
  assign_classes(w, classes, o);
  return simulate(w, o);
}

TEST(request_classes, a_higher_class_waits_less_and_the_lowest_no_longer_than_its_patience) {
  request_class_options classes;
  classes.high_share = 0.2;
  classes.low_share = 0.2;
  auto o = options_of(pool_shape::unified);
  o.pool.waiting_order.patience_max = std::chrono::seconds{60};
  const auto rows = summarise_classes(overloaded(classes, o));
  ASSERT_EQ(rows.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(rows[i].priority, 1 - static_cast<int>(i));
  EXPECT_LT(rows[0].ttft_mean_s, 0.5 * rows[1].ttft_mean_s);
  EXPECT_LT(rows[1].ttft_mean_s, 0.8 * rows[2].ttft_mean_s);
  EXPECT_LT(rows[2].held_max_s, 90) << "60 s, and what those before it take whose patience is over too";
}

TEST(request_classes, more_deadlines_are_kept_when_they_count) {
  request_class_options classes;
  classes.deadline_share = 0.2;
  const auto kept = [&](core::duration lead) {
    auto o = options_of(pool_shape::unified);
    o.pool.waiting_order.deadline_lead = lead;
    for (const auto& row : summarise_classes(overloaded(classes, o)))
      if (row.with_deadline)
        return row.deadlines_met_share;
    return 0.0;
  };
  const auto without = kept(-std::chrono::hours{1});
  const auto with = kept(std::chrono::seconds{10});
  EXPECT_GT(with, without + 0.04) << with << " beside " << without;
}

// -- load path
// --------------------------------------------------------------------------------------------------

TEST(load_path, a_silent_rank_keeps_a_fair_share_by_its_ledger) {
  for (const auto shape : shapes) {
    auto o = options_of(shape);
    o.load_path.silent_rank = 2;
    const auto w = steady(800, 20, 1500, 60);
    const auto r = simulate(w, o);
    expect_conserved(w, r, std::string{to_string(shape)});
    EXPECT_NEAR(share_of(r, o, 2, 0, 1e9), 0.25, 0.05) << to_string(shape);
  }
}

TEST(load_path, a_fifth_of_the_reports_lost_loses_no_request_and_hardly_any_time) {
  auto o = options_of(pool_shape::unified);
  const auto w = steady(800, 20, 1500, 60);
  const auto all = simulate(w, o);
  o.load_path.loss = 0.2;
  const auto r = simulate(w, o);
  expect_conserved(w, r, "loss");
  EXPECT_NEAR(static_cast<double>(r.reports_delivered) / static_cast<double>(all.reports_delivered), 0.8, 0.05);
  EXPECT_LT(summarise(r, o).ttft_mean_s, 1.05 * summarise(all, o).ttft_mean_s);
}

TEST(load_path, several_front_ends_complete_everything) {
  for (const auto shape : shapes)
    for (const std::uint32_t fronts : {2U, 4U, 7U}) {
      auto o = options_of(shape);
      o.front_ends = fronts;
      const auto w = steady(400, 20, 1500, 40);
      const auto r = simulate(w, o);
      expect_conserved(w, r, std::string{to_string(shape)});
      EXPECT_EQ(count_failed(r) + count_refused(r), 0u);
      for (std::uint16_t rank = 0; rank < 4; ++rank)
        EXPECT_NEAR(share_of(r, o, rank, 0, 1e9), 0.25, 0.08) << to_string(shape) << " " << fronts;
    }
}

// -- planted bug
// ------------------------------------------------------------------------------------------------

/// A ledger that forgets what is in flight: the rule sees ranks that are always idle.
class forgetful final : public core::policy_around {
 public:
  using policy_around::policy_around;
  [[nodiscard]] std::optional<core::choice> choose(std::span<const core::rank_view> ranks,
                                                   const core::placement_request& request) override {
    views_.assign(ranks.begin(), ranks.end());
    for (auto& v : views_) {
      v.requests = v.prefilling = v.reported_running = v.reported_waiting = 0;
      v.tokens = v.work_tokens = v.prefill_tokens = v.placed_tokens = v.generated_tokens = 0;
    }
    return rule_->choose(views_, request);
  }
};

run_summary run_busy(bool forgets, std::uint64_t seed) {
  auto o = options_of(pool_shape::unified, false, 8);
  if (forgets)
    o.make_policy = [](const core::policy_options& tuning) {
      return std::make_unique<forgetful>(core::make_policy("headroom", tuning));
    };
  mixed_workload_options mix;
  mix.requests = 3000;
  mix.requests_per_s = 18;
  mix.seed = seed;
  const auto w = mixed_workload(mix);
  const auto r = simulate(w, o);
  expect_conserved(w, r, forgets ? "forgetful" : "headroom");
  return summarise(r, o);
}

// TTFT over that on an idle pool, on eight busy ranks with mixed lengths.
constexpr double slowdown_mean_most = 2.5;
constexpr double slowdown_p99_most = 20;

TEST(planted_bug, the_default_policy_keeps_to_its_bounds_on_a_busy_pool) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto s = run_busy(false, seed);
    EXPECT_LE(s.slowdown_mean, slowdown_mean_most) << seed;
    EXPECT_LE(s.slowdown_p99, slowdown_p99_most) << seed;
  }
}

TEST(planted_bug, a_ledger_that_forgets_charges_in_flight_misses_these_bounds_by_far) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto s = run_busy(true, seed);
    EXPECT_GT(s.slowdown_mean, 1.5 * slowdown_mean_most) << seed;
    EXPECT_GT(s.slowdown_p99, 2 * slowdown_p99_most) << seed;
    EXPECT_GT(s.ttft_p99_s, 1.3 * run_busy(false, seed).ttft_p99_s) << seed;
  }
}

// -- failure-cases.md in the simulator
// --------------------------------------------------------------------------

// 1. vllm PR22910; 4. sglang PR22614
TEST(failure_cases, when_reports_never_arrive_work_is_spread_and_the_uncharged_rule_sends_all_to_rank_0) {
  auto o = options_of(pool_shape::unified);
  o.load_path.every_steps = 0;
  workload w;
  for (int i = 0; i < 100; ++i)
    w.requests.push_back(asks(0, 1000, 20));
  EXPECT_THAT(simulate(w, o).placed, Each(25u));
  o.pool.policy = "total_tokens_uncharged";
  EXPECT_THAT(simulate(w, o).placed, testing::ElementsAre(100u, 0u, 0u, 0u));
}

// 2. vllm PR47420; 4. sglang PR22614
TEST(failure_cases, bursts_between_two_reports_are_spread_by_their_tokens) {
  auto o = options_of(pool_shape::unified);
  o.load_path.period = std::chrono::seconds{1};
  workload w;
  for (int burst = 0; burst < 20; ++burst)
    for (int i = 0; i < 16; ++i)
      w.requests.push_back(asks(1.3 * burst, i % 4 == 0 ? 8000 : 500, 30));
  const auto r = simulate(w, o);
  expect_conserved(w, r, "bursts");
  EXPECT_LE(r.busiest_to_mean_work, 1.1);
  o.pool.policy = "total_tokens_uncharged";
  EXPECT_GT(summarise(simulate(w, o), o).ttft_mean_s, 2 * summarise(r, o).ttft_mean_s) << "the case itself";
}

// 3. vllm PR41626
TEST(failure_cases, reports_a_second_old_do_not_wipe_charges) {
  auto o = options_of(pool_shape::unified);
  const auto w = steady(800, 20, 1500, 40);
  const auto fresh = simulate(w, o);
  o.load_path.delay = std::chrono::seconds{1};
  o.load_path.jitter = 0.9; // and they overtake each other
  const auto stale = simulate(w, o);
  expect_conserved(w, stale, "stale");
  EXPECT_LT(summarise(stale, o).ttft_mean_s, 1.1 * summarise(fresh, o).ttft_mean_s);
  EXPECT_LT(stale.busiest_to_mean_work, fresh.busiest_to_mean_work + 0.05);
}

// 10. sglang#16080
TEST(failure_cases, long_prompts_in_step_with_the_ranks_do_not_pile_up_on_one) {
  auto o = options_of(pool_shape::unified);
  workload w;
  for (int i = 0; i < 40; ++i)
    w.requests.push_back(asks(i * 0.3, i % 4 == 0 ? 32'000 : 1000, 20));
  EXPECT_LE(simulate(w, o).busiest_to_mean_work, 1.2);
  o.pool.policy = "round_robin";
  EXPECT_GT(simulate(w, o).busiest_to_mean_work, 2) << "the case itself";
}

// 18., 19., 38.
TEST(failure_cases, a_dead_rank_gets_nothing_and_serves_again_when_it_returns) {
  using kind = rank_happening::kind;
  for (const std::string policy : {"headroom", "smg_servicer", "total_tokens", "vllm", "dynamo"}) {
    auto o = options_of(pool_shape::unified);
    o.pool.policy = policy;
    o.happenings = {{5, kind::dies, 2, 1}, {15, kind::joins, 2, 1}, {20, kind::dies, 2, 1}, {25, kind::joins, 2, 1}};
    const auto w = steady(700, 20, 1000, 30);
    const auto r = simulate(w, o);
    expect_conserved(w, r, policy);
    EXPECT_EQ(count_refused(r), 0u) << policy;
    EXPECT_EQ(share_of(r, o, 2, 5.001, 15), 0) << policy;
    EXPECT_GT(share_of(r, o, 2, 15, 20), 0.05) << policy;
    EXPECT_EQ(share_of(r, o, 2, 20.001, 25), 0) << policy;
    EXPECT_GT(share_of(r, o, 2, 27, 40), 0.1) << policy;
  }
}

// 35. smg PR2035
TEST(failure_cases, forty_pairs_are_ten_on_each_rank_of_both_pools) {
  auto o = options_of(pool_shape::pair);
  workload w;
  for (int i = 0; i < 40; ++i)
    w.requests.push_back(asks(0, 1000, 20));
  const auto r = simulate(w, o);
  std::vector<int> prefill(4);
  for (const auto& x : r.requests)
    ++prefill[x.prefill_rank];
  EXPECT_THAT(prefill, Each(10));
  EXPECT_THAT(r.placed, Each(10u));
}

// -- figures
// ----------------------------------------------------------------------------------------------------

TEST(gap_histogram, its_quantiles_are_those_of_the_sorted_gaps_within_a_64th) {
  random_source random{3};
  gap_histogram h;
  EXPECT_TRUE(std::isnan(h.quantile_s(0.5)));
  EXPECT_TRUE(std::isnan(h.mean_s()));
  std::vector<double> gaps;
  for (int i = 0; i < 5000; ++i) {
    const core::duration gap{static_cast<std::int64_t>(random.lognormal(4e7, 2))};
    h.add(gap);
    gaps.push_back(core::to_seconds(gap));
  }
  EXPECT_EQ(h.count(), 5000u);
  EXPECT_NEAR(h.mean_s(), std::accumulate(gaps.begin(), gaps.end(), 0.0) / 5000, 1e-9);
  std::sort(gaps.begin(), gaps.end());
  for (const double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const double exact = gaps[static_cast<std::size_t>(q * 4999)];
    EXPECT_GE(h.quantile_s(q), exact) << q;
    EXPECT_LE(h.quantile_s(q), exact * (1 + 1.0 / 64) + 2e-9) << q;
  }
  double last = 0;
  std::uint64_t sum = 0;
  for (const auto& [end, count] : h.buckets()) {
    EXPECT_GT(end, last);
    last = end;
    sum += count;
  }
  EXPECT_EQ(sum, 5000u);
}

TEST(gap_histogram, gaps_of_any_length_and_many_at_once) {
  gap_histogram h;
  h.add(core::duration{-5}, 3); // as nothing
  h.add(core::duration{63});
  h.add(core::duration{64}, 2);
  h.add(std::chrono::hours{24 * 365});
  EXPECT_EQ(h.count(), 7u);
  EXPECT_NEAR(h.quantile_s(0), 1e-9, 1e-12);
  EXPECT_NEAR(h.quantile_s(0.5), 64e-9, 1e-12);
  EXPECT_NEAR(h.quantile_s(1), 365.0 * 86'400, 365.0 * 86'400 / 64);
}

TEST(quantile, is_the_value_at_that_place_of_the_sorted_ones) {
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
  EXPECT_EQ(quantile({3}, 0.99), 3);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0), 1);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0.99), 4);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 1), 5);
}

TEST(idle_ttft, is_what_one_request_alone_takes_in_each_shape) {
  for (const bool lockstep : {false, true})
    for (const auto shape : shapes)
      for (const std::uint32_t tokens : {1U, 100U, 8192U, 8193U, 30'000U}) {
        const auto o = options_of(shape, lockstep);
        workload w;
        w.requests = {asks(1, tokens, 3)};
        const auto r = simulate(w, o);
        EXPECT_NEAR(r.requests[0].first_token_s - 1, idle_ttft_s(o, tokens), 1e-4)
            << to_string(shape) << " " << tokens << (lockstep ? " lockstep" : "");
      }
}

} // namespace
} // namespace rankwise::sim
