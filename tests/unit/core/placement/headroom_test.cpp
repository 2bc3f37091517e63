#include "core/placement/policies/headroom.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

/// The default policy's parts; what it decides for single ranks is in policies_test.cpp.
namespace rankwise::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t chunk = 8192;

timestamp at(int ms) {
  return timestamp{} + seconds{100} + milliseconds{ms};
}

std::vector<rank_view> equal_ranks(std::uint16_t count) {
  std::vector<rank_view> v(count);
  for (std::uint16_t i = 0; i < count; ++i) {
    v[i].rank = i;
    v[i].kv_capacity = 1'000'000;
    v[i].max_running = 256;
    v[i].chunk_tokens = chunk;
    v[i].prefill_since = at(0);
  }
  return v;
}

placement_request prompt(std::uint64_t tokens, request_handle handle = 1) {
  placement_request r;
  r.handle = handle;
  r.now = at(0);
  r.prompt_tokens = tokens;
  r.max_new_tokens = 100;
  return r;
}

void add_prompt(rank_view& v, std::uint64_t tokens) {
  v.requests += 1;
  v.prefilling += 1;
  v.tokens += tokens;
  v.prefill_tokens += tokens;
  v.work_tokens += tokens;
  v.placed_tokens += tokens;
}

leg_progress first_token(std::uint16_t rank, const placement_request& r, std::optional<std::uint64_t> cached) {
  leg_progress p;
  p.rank = rank;
  p.handle = r.handle;
  p.prompt_tokens = r.prompt_tokens;
  p.cached_tokens = cached;
  p.at = r.now;
  return p;
}

// -- late binding
// -----------------------------------------------------------------------------------------------

TEST(headroom_late_binding, waits_exactly_when_every_rank_has_more_than_its_credit_of_prompts) {
  for (std::uint32_t covered = 0; covered < 16; ++covered) {
    headroom p{policy_options{}};
    auto ranks = equal_ranks(4);
    for (std::uint16_t i = 0; i < 4; ++i)
      add_prompt(ranks[i], (covered >> i & 1U) != 0 ? 3 * chunk + 1 : 3 * chunk);
    auto r = prompt(1000);
    r.may_wait = true;
    const auto c = p.choose(ranks, r);
    EXPECT_EQ(c->wait, covered == 15) << covered;
    if (covered != 15) {
      EXPECT_EQ(covered >> c->rank & 1U, 0U) << covered;
    }
    r.may_wait = false;
    EXPECT_FALSE(p.choose(ranks, r)->wait);
  }
}

TEST(headroom_late_binding, waits_for_kv_but_never_for_an_empty_rank) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(1);
  ranks[0].requests = 1;
  ranks[0].tokens = 999'500;
  auto r = prompt(1000);
  r.may_wait = true;
  EXPECT_TRUE(p.choose(ranks, r)->wait);
  ranks[0].requests = 0;
  EXPECT_FALSE(p.choose(ranks, r)->wait) << "nothing would change by waiting";
}

TEST(headroom_late_binding, the_credit_is_shared_with_those_whose_requests_reports_count) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  for (auto& r : ranks)
    add_prompt(r, 2 * chunk);
  auto r = prompt(1000);
  r.may_wait = true;
  const auto told = [&](std::uint32_t reported) {
    static std::uint64_t sequence = 0;
    for (int i = 0; i < 400; ++i) {
      step_observation s;
      s.rank = static_cast<std::uint16_t>(i % 2);
      s.at = at(0);
      s.requests_before = s.requests_after = 10;
      s.report_sequence = ++sequence;
      s.reported_requests = reported;
      p.on_step(s);
    }
  };
  told(10);
  EXPECT_FALSE(p.choose(ranks, r)->wait) << "two chunks of three";
  told(40);
  EXPECT_TRUE(p.choose(ranks, r)->wait) << "two, and three quarters of one are ours";
  told(10);
  EXPECT_FALSE(p.choose(ranks, r)->wait) << "they are gone";
}

TEST(headroom_late_binding, is_off_by_its_switch_and_where_nothing_is_prefilled) {
  policy_options o;
  o.headroom_late_binding = false;
  headroom off{o};
  headroom on{policy_options{}};
  auto ranks = equal_ranks(1);
  add_prompt(ranks[0], 10 * chunk);
  auto r = prompt(1000);
  r.may_wait = true;
  EXPECT_FALSE(off.choose(ranks, r)->wait);
  EXPECT_FALSE(off.waiting_order(r).has_value());
  EXPECT_TRUE(on.choose(ranks, r)->wait);
  r.needs_prefill = false;
  EXPECT_FALSE(on.choose(ranks, r)->wait);
  EXPECT_FALSE(on.waiting_order(r).has_value());
}

TEST(headroom_late_binding, the_order_of_those_who_wait_is_the_seconds_that_their_prompts_take) {
  const headroom p{policy_options{}};
  EXPECT_NEAR(p.waiting_order(prompt(10'000))->work_s, 10'000 * p.pace().per_prefill_token_s, 1e-9);
}

// -- progress
// ---------------------------------------------------------------------------------------------------

TEST(headroom_progress, a_rank_that_began_its_prompt_earlier_is_preferred) {
  headroom p{policy_options{}};
  auto ranks = equal_ranks(2);
  add_prompt(ranks[0], 30'000);
  add_prompt(ranks[1], 30'000);
  ranks[1].prefill_since = at(-1000);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(p.choose(ranks, prompt(100))->rank, 1);
  policy_options o;
  o.headroom_progress = false;
  headroom off{o};
  EXPECT_EQ(off.score_of(ranks[0], prompt(100)), off.score_of(ranks[1], prompt(100)));
}

TEST(headroom_progress, the_end_of_the_prompt_counts_until_its_first_token) {
  const headroom p{policy_options{}};
  auto ranks = equal_ranks(1);
  const double idle = *p.score_of(ranks[0], prompt(100));
  add_prompt(ranks[0], 30'000);
  ranks[0].prefill_since = at(-60'000);
  const double after_a_minute = *p.score_of(ranks[0], prompt(100));
  ranks[0].prefill_since = at(-100'000);
  EXPECT_EQ(*p.score_of(ranks[0], prompt(100)), after_a_minute);
  EXPECT_GT(after_a_minute, idle + 3000 * p.pace().per_prefill_token_s);
  add_prompt(ranks[0], 20'000); // the next prompt has not begun
  EXPECT_GT(*p.score_of(ranks[0], prompt(100)), after_a_minute + 20'000 * p.pace().per_prefill_token_s);
}

TEST(headroom_progress, where_streams_decode_each_step_takes_a_chunk_off) {
  policy_options o;
  o.headroom_learn = false;
  headroom p{o};
  auto ranks = equal_ranks(1);
  ranks[0].requests = 1; // decodes
  ranks[0].tokens = 100;
  p.on_placed(0, prompt(60'000));
  add_prompt(ranks[0], 60'000);
  double last = *p.score_of(ranks[0], prompt(100, 2));
  for (int step = 1; step <= 3; ++step) {
    p.on_step({0, at(step), 1, 2, 60'100});
    const double score = *p.score_of(ranks[0], prompt(100, 2));
    EXPECT_NEAR(last - score, chunk * p.pace().per_prefill_token_s + p.pace().decode_s(1, 100), 0.01) << step;
    last = score;
  }
}

// -- prefixes
// ---------------------------------------------------------------------------------------------------

class headroom_prefix : public testing::Test {
 protected:
  [[nodiscard]] placement_request begins_alike(request_handle handle) const {
    auto r = prompt(8 * 512 + 100, handle);
    r.blocks = blocks_;
    r.block_tokens = 512;
    return r;
  }
  /// `times` requests on rank 0, of which the engine says that so much was cached.
  void run_on_0(headroom& p, int times, std::uint64_t cached) {
    for (int i = 0; i < times; ++i) {
      const auto r = begins_alike(++last_);
      p.on_placed(0, r);
      p.on_first_token(first_token(0, r, cached));
    }
  }
  std::vector<std::uint64_t> blocks_{1, 2, 3, 4, 5, 6, 7, 8};
  request_handle last_ = 0;
};

TEST_F(headroom_prefix, trust_starts_at_nothing_and_grows_with_the_engines_word) {
  headroom p{policy_options{}};
  const auto ranks = equal_ranks(4);
  std::uint64_t cached = 0;
  run_on_0(p, 1, 0);
  EXPECT_EQ(p.choose(ranks, begins_alike(1000))->cached_tokens, 0u);
  for (int i = 0; i < 5; ++i) {
    run_on_0(p, 20, 8 * 512);
    std::uint64_t now_cached = 0;
    for (int j = 0; j < 4; ++j) {
      const auto c = p.choose(ranks, begins_alike(1000));
      EXPECT_EQ(c->rank, 0) << i;
      now_cached = c->cached_tokens;
    }
    EXPECT_GT(now_cached, cached);
    cached = now_cached;
  }
  EXPECT_GT(cached, 4000u);
  EXPECT_LE(cached, 8u * 512);
  run_on_0(p, 100, 0); // its cache is gone
  EXPECT_LT(p.choose(ranks, begins_alike(1000))->cached_tokens, 100u);
}

TEST_F(headroom_prefix, an_engine_that_says_nothing_or_never_has_it_draws_nothing_to_its_rank) {
  headroom silent{policy_options{}};
  for (int i = 0; i < 50; ++i) {
    const auto r = begins_alike(++last_);
    silent.on_placed(0, r);
    silent.on_first_token(first_token(0, r, std::nullopt));
  }
  headroom without{policy_options{}};
  run_on_0(without, 50, 0);
  for (auto* p : {&silent, &without}) {
    std::vector<int> counts(4);
    for (int i = 0; i < 40; ++i)
      ++counts[p->choose(equal_ranks(4), begins_alike(1000))->rank];
    EXPECT_EQ(counts, (std::vector<int>{10, 10, 10, 10}));
  }
}

TEST_F(headroom_prefix, a_hit_is_not_worth_more_than_the_prompt_that_it_saves) {
  headroom p{policy_options{}};
  run_on_0(p, 200, 8 * 512);
  auto ranks = equal_ranks(2);
  EXPECT_EQ(p.choose(ranks, begins_alike(1000))->rank, 0);
  add_prompt(ranks[0], 20'000);
  EXPECT_EQ(p.choose(ranks, begins_alike(1000))->rank, 1);
}

TEST_F(headroom_prefix, a_new_incarnation_has_nothing_and_a_prompt_without_a_first_token_neither) {
  headroom p{policy_options{}};
  run_on_0(p, 200, 8 * 512);
  p.on_rank_opened(0);
  EXPECT_EQ(p.choose(equal_ranks(1), begins_alike(1000))->cached_tokens, 0u);
  const auto r = begins_alike(1001);
  p.on_placed(0, r);
  EXPECT_EQ(p.choose(equal_ranks(1), begins_alike(1002))->cached_tokens, 0u);
  p.on_first_token(first_token(0, r, 0));
  EXPECT_GT(p.choose(equal_ranks(1), begins_alike(1002))->cached_tokens, 0u);
}

// -- slow ranks
// -------------------------------------------------------------------------------------------------

TEST(headroom_slowness, a_rank_whose_steps_take_twice_as_long_loses_share) {
  headroom p{policy_options{}};
  std::vector<timestamp> now(8, at(0));
  const step_pace::coefficients truth;
  for (int i = 0; i < 60; ++i)
    for (std::uint16_t rank = 0; rank < 8; ++rank) {
      now[rank] += duration{static_cast<std::int64_t>(truth.decode_s(20, 40'000) * (rank == 5 ? 2 : 1) * 1e9)};
      p.on_step({rank, now[rank], 0, 20, 40'000});
    }
  EXPECT_GT(p.slow_factor(5) / p.slow_factor(0), 1.5);
  auto ranks = equal_ranks(8);
  for (auto& r : ranks) {
    r.requests = 20;
    r.tokens = 40'000;
  }
  for (int i = 0; i < 64; ++i)
    EXPECT_NE(p.choose(ranks, prompt(2000))->rank, 5);
  // Others have prompts to do: then its turn comes.
  for (auto& r : ranks) {
    if (r.rank == 5)
      continue;
    p.on_placed(r.rank, prompt(20'000, 100U + r.rank));
    add_prompt(r, 20'000);
  }
  EXPECT_EQ(p.choose(ranks, prompt(2000))->rank, 5);
  p.on_rank_opened(5);
  EXPECT_EQ(p.slow_factor(5), 1) << "another process";
}

TEST(headroom_slowness, where_half_of_the_ranks_are_slow_the_others_are_the_measure_and_nobody_is_fast) {
  const step_pace::coefficients truth;
  for (const std::uint16_t ranks : {std::uint16_t{2}, std::uint16_t{4}})
    for (const double factor : {1.6, 3.0, 6.0}) {
      std::mt19937_64 random{7};
      headroom p{policy_options{}};
      std::vector<timestamp> now(ranks, at(0));
      for (int i = 0; i < 5000; ++i)
        for (std::uint16_t rank = 0; rank < ranks; ++rank) {
          const double noise = 0.97 + 0.06 * static_cast<double>(random() >> 11) * 0x1.0p-53;
          now[rank] += from_seconds(truth.decode_s(20, 40'000) * (rank < ranks / 2 ? factor : 1) * noise);
          p.on_step({rank, now[rank], 0, 20, 40'000});
        }
      for (std::uint16_t rank = 0; rank < ranks; ++rank) {
        const double seen = p.pace().decode_s(20, 40'000) * p.slow_factor(rank);
        EXPECT_NEAR(seen / truth.decode_s(20, 40'000) / (rank < ranks / 2 ? factor : 1), 1, 0.15)
            << ranks << " ranks, rank " << rank << ", " << factor;
        EXPECT_GE(p.slow_factor(rank), 1);
      }
    }
}

TEST(headroom_slowness, noise_of_a_fifth_is_not_slowness) {
  std::mt19937_64 random{1};
  headroom p{policy_options{}};
  std::vector<timestamp> now(4, at(0));
  const step_pace::coefficients truth;
  for (int i = 0; i < 500; ++i)
    for (std::uint16_t rank = 0; rank < 4; ++rank) {
      const double noise = 0.8 + 0.4 * static_cast<double>(random() >> 11) * 0x1.0p-53;
      now[rank] += duration{static_cast<std::int64_t>(truth.decode_s(20, 40'000) * noise * 1e9)};
      p.on_step({rank, now[rank], 0, 20, 40'000});
      ASSERT_EQ(p.slow_factor(rank), 1);
    }
}

/// A rank of 20 streams whose steps take a half longer than the prior says; each output carries a report.
class watched_rank {
 public:
  void step(std::uint32_t before, std::uint32_t after, std::uint32_t reported, double seconds = 0) {
    const step_pace::coefficients truth;
    now_ += from_seconds(seconds > 0 ? seconds : 1.5 * truth.decode_s(after, 2000.0 * after));
    step_observation s;
    s.at = now_;
    s.requests_before = before;
    s.requests_after = after;
    s.kv_tokens = 2000U * after;
    s.report_sequence = ++sequence_;
    s.reported_requests = reported;
    policy_.on_step(s);
  }
  /// Another rank makes some.
  void peer_steps() {
    for (int i = 0; i < 3; ++i) {
      peer_now_ += from_seconds(step_pace::coefficients{}.decode_s(20, 40'000));
      policy_.on_step({1, peer_now_, 0, 20, 40'000});
    }
  }
  /// By how much 50 steps that take three times as long as before change what is expected of one.
  double learned() {
    const auto seen = [&] { return policy_.pace().decode_s(20, 40'000) * policy_.slow_factor(0); };
    const double before = seen();
    for (int i = 0; i < 50; ++i)
      step(20, 20, 20, 4.5 * step_pace::coefficients{}.decode_s(20, 40'000));
    return seen() / before;
  }
  double slow_factor() const { return policy_.slow_factor(0); }
  double waits_for_step() {
    return policy_.waiting_order(prompt(1000))->to_end_s - policy_.waiting_order(prompt(1000))->work_s;
  }

 private:
  headroom policy_{policy_options{}};
  timestamp now_ = at(0);
  timestamp peer_now_ = at(0);
  std::uint64_t sequence_ = 0;
};

TEST(headroom_learning, stops_while_two_reports_in_a_row_count_requests_of_others) {
  watched_rank rank;
  rank.step(20, 20, 40);
  rank.step(20, 20, 40);
  EXPECT_EQ(rank.learned(), 1);
  watched_rank alone;
  EXPECT_GT(alone.learned(), 2);
}

TEST(headroom_learning, what_made_a_rank_slow_just_before_others_were_seen_there_is_forgotten_with_them) {
  watched_rank rank;
  for (int i = 0; i < 20; ++i) {
    rank.step(20, 20, 20, 0.2);
    rank.peer_steps(); // somebody to compare with
  }
  EXPECT_GT(rank.slow_factor(), 1.5);
  rank.step(20, 20, 40);
  rank.step(20, 20, 40);
  EXPECT_EQ(rank.slow_factor(), 1) << "nobody knows";
  rank.step(20, 20, 20, 61);
  EXPECT_EQ(rank.slow_factor(), 1) << "the others are gone";
}

TEST(headroom_learning, goes_on_when_a_report_still_counts_what_just_ended) {
  watched_rank rank;
  rank.step(40, 40, 40);
  rank.step(40, 20, 40); // twenty end with this output
  rank.step(20, 20, 40); // sampled before they did
  rank.step(20, 20, 20);
  rank.step(20, 20, 40); // a single one proves nothing
  EXPECT_GT(rank.learned(), 1.5);
}

TEST(headroom_learning, an_hour_without_outputs_is_no_step) {
  watched_rank rank;
  for (int i = 0; i < 10; ++i)
    rank.step(20, 20, 20);
  const double before = rank.waits_for_step();
  rank.step(20, 20, 20, 3600);
  EXPECT_NEAR(rank.waits_for_step() / before, 1, 0.01);
}

/// Ranks that prefill and hand over, each step three prompts, told one after the other; five more wait.
void prefill_steps(headroom& p, const step_pace::coefficients& truth, int steps) {
  constexpr std::uint64_t tokens = 2000;
  constexpr std::uint16_t ranks = 4;
  std::vector<timestamp> now(ranks, at(0));
  request_handle handle = 0;
  std::vector<std::deque<placement_request>> placed(ranks);
  for (int i = 0; i < steps; ++i)
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      while (placed[rank].size() < 8) {
        auto r = prompt(tokens, ++handle);
        r.now = now[rank];
        p.on_placed(rank, r);
        placed[rank].push_back(r);
      }
      now[rank] += from_seconds(truth.base_s + 3 * tokens * truth.per_prefill_token_s);
      for (std::uint32_t told = 0; told < 3; ++told) {
        now[rank] += std::chrono::microseconds{200};
        leg_progress l;
        l.rank = rank;
        l.handle = placed[rank].front().handle;
        l.prompt_tokens = tokens;
        l.prefilled = false;
        l.of_prefill_rank = true;
        l.at = now[rank];
        placed[rank].pop_front();
        p.on_ended(l);
        step_observation s;
        s.rank = rank;
        s.at = now[rank];
        s.chunk_tokens = 3 * tokens;
        s.prefilling_after = s.requests_after = 7 - told;
        s.kv_tokens = s.prefill_tokens = tokens * s.requests_after;
        p.on_step(s);
      }
    }
}

TEST(headroom_learning, prompts_of_one_step_that_are_told_apart_are_one_observation) {
  for (const double factor : {0.3, 1.0, 3.0}) {
    step_pace::coefficients truth;
    truth.per_prefill_token_s *= factor;
    headroom p{policy_options{}};
    prefill_steps(p, truth, 500);
    EXPECT_NEAR(p.pace().per_prefill_token_s / truth.per_prefill_token_s, 1, 0.1) << factor;
    for (std::uint16_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(p.slow_factor(rank), 1) << "all alike, whatever was expected";
  }
}

// -- generated states
// -------------------------------------------------------------------------------------------

class generated_states {
 public:
  explicit generated_states(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  std::vector<rank_view> ranks() {
    auto v = equal_ranks(static_cast<std::uint16_t>(2 + below(7)));
    const std::uint64_t capacity = below(3) == 0 ? 30'000 : below(2) == 0 ? 200'000 : 1'000'000;
    const bool prompts = below(2) == 0;
    const std::uint64_t fullest = 1 + below(130);
    for (auto& r : v) {
      r.kv_capacity = capacity;
      r.requests = static_cast<std::uint32_t>(below(100));
      r.tokens = r.requests == 0 ? 0 : r.requests + below(capacity) * fullest / 100;
      r.placed_tokens = r.tokens; // exact, as the ledger has it
      r.prefill_since = at(-static_cast<int>(below(3000)));
      r.share = below(4) == 0 ? 0.01 + static_cast<double>(below(99)) / 100 : 1;
      if (prompts)
        for (std::uint64_t n = below(4); n > 0; --n)
          add_prompt(r, 1 + below(40'000));
    }
    return v;
  }
  placement_request request() {
    auto r = prompt(1 + below(below(2) == 0 ? 1000 : 60'000));
    r.max_new_tokens = 1 + below(20'000);
    r.needs_prefill = below(3) > 0;
    return r;
  }

 private:
  std::mt19937_64 random_;
};

TEST(headroom_generated, never_a_rank_whose_kv_the_prompt_overfills_while_another_has_room) {
  generated_states states{1};
  for (int i = 0; i < 20'000; ++i) {
    policy_options o;
    o.lockstep = i % 2 == 0;
    headroom p{o};
    for (int j = 0; j < 5; ++j) // expected outputs from few tokens to many
      p.on_ended(leg_progress{0, 9, 1000, 0, 1 + states.below(20'000), true, at(0), std::nullopt, false});
    const auto ranks = states.ranks();
    const auto r = states.request();
    const auto fits = [&](const rank_view& v) { return v.tokens + r.prompt_tokens <= v.kv_capacity; };
    if (std::any_of(ranks.begin(), ranks.end(), fits)) {
      ASSERT_TRUE(fits(ranks[p.choose(ranks, r)->rank])) << i;
    }
  }
}

TEST(headroom_generated, more_load_of_any_kind_on_a_rank_never_makes_it_preferred) {
  generated_states states{2};
  int not_chosen = 0;
  for (int i = 0; i < 60'000; ++i) {
    policy_options o;
    o.lockstep = i % 2 == 0;
    const auto ranks = states.ranks();
    const auto r = states.request();
    const auto expected = 1 + states.below(20'000);
    const auto choose = [&](const std::vector<rank_view>& among) {
      headroom p{o};
      p.on_ended(leg_progress{0, 9, 1000, 0, expected, true, at(0), std::nullopt, false});
      return p.choose(among, r)->rank;
    };
    const auto before = choose(ranks);
    const auto which = states.below(ranks.size());
    if (which == before)
      continue;
    ++not_chosen;
    auto more = ranks;
    // In lockstep a stream more delays all ranks alike, so that prompts weigh more everywhere: no load of that rank.
    const bool streams = !o.lockstep || !r.needs_prefill;
    const auto kind = states.below(3);
    if (kind == 0 && streams) {
      const auto count = 1 + states.below(20);
      more[which].requests += static_cast<std::uint32_t>(count);
      more[which].tokens += count * (1 + states.below(1000));
      more[which].placed_tokens = more[which].tokens;
    } else if (kind == 1) {
      more[which].tokens += 1 + states.below(50'000);
      more[which].placed_tokens = more[which].tokens;
    } else {
      add_prompt(more[which], 1 + states.below(30'000));
    }
    ASSERT_NE(choose(more), which) << i << " kind " << kind << " lockstep " << o.lockstep << " prefill "
                                   << r.needs_prefill;
  }
  EXPECT_GT(not_chosen, 20'000);
}

} // namespace
} // namespace rankwise::core
