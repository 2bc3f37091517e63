#include "core/placement/policies/output_lengths.hpp"
#include "core/placement/policies/prefix_map.hpp"
#include "core/placement/policies/step_pace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

/// What policies learn: where prompts are likely to be cached, how long steps take, how much requests generate.
namespace rankwise::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using blocks = std::vector<std::uint64_t>;

std::map<std::uint16_t, std::size_t> found(const prefix_map& m, const blocks& prompt) {
  std::map<std::uint16_t, std::size_t> result;
  for (const auto& match : m.find(prompt))
    result[match.rank] = match.blocks;
  return result;
}

TEST(prefix_map, finds_the_leading_blocks_that_each_rank_has) {
  prefix_map m{100};
  m.placed(0, blocks{1, 2, 3});
  m.placed(2, blocks{1, 2});
  m.placed(1, blocks{7, 2, 3});
  EXPECT_THAT(found(m, {1, 2, 3, 4}), ElementsAre(std::pair{0, 3}, std::pair{2, 2}));
  EXPECT_THAT(found(m, {1, 9, 3}), ElementsAre(std::pair{0, 1}, std::pair{2, 1}));
  EXPECT_THAT(found(m, {2, 3}), ElementsAre(std::pair{0, 2}, std::pair{1, 2}, std::pair{2, 1}));
  EXPECT_THAT(found(m, {5, 1, 2}), IsEmpty()) << "the first block decides";
  EXPECT_THAT(found(m, {}), IsEmpty());
}

TEST(prefix_map, a_gap_ends_the_match_of_a_rank_even_when_it_has_later_blocks) {
  prefix_map m{100};
  m.placed(0, blocks{1, 2, 3});
  m.placed(1, blocks{1});
  m.placed(1, blocks{3});
  EXPECT_THAT(found(m, {1, 2, 3}), ElementsAre(std::pair{0, 3}, std::pair{1, 1}));
}

TEST(prefix_map, keeps_so_many_blocks_of_each_rank_and_the_ends_of_old_prompts_go_first) {
  prefix_map m{4};
  m.placed(0, blocks{1, 2, 3});
  m.placed(0, blocks{11, 12}); // five with these: the oldest prompt loses its end
  EXPECT_EQ(m.size(0), 4u);
  EXPECT_THAT(found(m, {1, 2, 3}), ElementsAre(std::pair{0, 2}));
  m.placed(0, blocks{1}); // used again: now the newest
  m.placed(0, blocks{21, 22});
  EXPECT_EQ(m.size(0), 4u);
  EXPECT_THAT(found(m, {1, 2}), ElementsAre(std::pair{0, 1}));
  EXPECT_THAT(found(m, {11, 12}), ElementsAre(std::pair{0, 1}));
  EXPECT_EQ(m.size(1), 0u) << "another rank's are its own";
}

TEST(prefix_map, a_prompt_longer_than_the_bound_leaves_its_beginning) {
  prefix_map m{3};
  m.placed(0, blocks{1, 2, 3, 4, 5});
  EXPECT_EQ(m.size(0), 3u);
  EXPECT_THAT(found(m, {1, 2, 3, 4, 5}), ElementsAre(std::pair{0, 3}));
}

TEST(prefix_map, forgets_one_rank_and_no_other) {
  prefix_map m{100};
  m.placed(0, blocks{1, 2});
  m.placed(1, blocks{1, 2});
  m.forget(0);
  m.forget(9);
  EXPECT_EQ(m.size(0), 0u);
  EXPECT_THAT(found(m, {1, 2}), ElementsAre(std::pair{1, 2}));
  m.placed(0, blocks{1});
  EXPECT_THAT(found(m, {1, 2}), ElementsAre(std::pair{0, 1}, std::pair{1, 2}));
}

TEST(prefix_map, agrees_with_a_list_per_rank_over_generated_prompts) {
  constexpr std::size_t bound = 12;
  std::mt19937_64 random{7};
  prefix_map m{bound};
  std::vector<std::vector<std::uint64_t>> lists(3); // newest last
  for (int i = 0; i < 3000; ++i) {
    blocks prompt;
    const std::size_t length = 1 + random() % 6;
    for (std::size_t b = 0; b < length; ++b)
      prompt.push_back(b * 10 + random() % 3);
    const auto rank = static_cast<std::uint16_t>(random() % 3);
    auto& list = lists[rank];
    if (random() % 50 == 0) {
      m.forget(rank);
      list.clear();
    }
    m.placed(rank, prompt);
    for (std::size_t b = prompt.size(); b-- > 0;) {
      std::erase(list, prompt[b]);
      list.push_back(prompt[b]);
    }
    list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(std::min(list.size(), bound)));
    std::map<std::uint16_t, std::size_t> expected;
    for (std::uint16_t r = 0; r < 3; ++r) {
      const auto has = [&](std::uint64_t b) {
        return std::find(lists[r].begin(), lists[r].end(), b) != lists[r].end();
      };
      const auto n = static_cast<std::size_t>(std::find_if_not(prompt.begin(), prompt.end(), has) - prompt.begin());
      if (n > 0)
        expected[r] = n;
      ASSERT_EQ(m.size(r), lists[r].size());
    }
    ASSERT_EQ(found(m, prompt), expected) << i;
  }
}

// -- step times
// -------------------------------------------------------------------------------------------------

constexpr step_pace::coefficients planted{12e-3, 0.5e-3, 0.05e-6, 0.02e-3};

/// Steps of batches of all sizes, each longer or shorter by up to a tenth.
void learn(step_pace& pace, const step_pace::coefficients& truth, int steps, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1.0p-53;
  };
  for (int i = 0; i < steps; ++i) {
    const double requests = std::floor(uniform(1, 200));
    const double kv = requests * uniform(100, 6000);
    pace.learn_step(truth.decode_s(requests, kv) * uniform(0.9, 1.1), requests, kv, 0);
  }
}

TEST(step_pace, converges_to_planted_coefficients_from_noisy_steps) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    step_pace pace;
    learn(pace, planted, 3000, seed);
    EXPECT_NEAR(pace.get().base_s, planted.base_s, 0.15 * planted.base_s) << seed;
    EXPECT_NEAR(pace.get().per_request_s, planted.per_request_s, 0.1 * planted.per_request_s) << seed;
    EXPECT_NEAR(pace.get().per_kv_token_s, planted.per_kv_token_s, 0.15 * planted.per_kv_token_s) << seed;
    for (const double requests : {1.0, 50.0, 200.0})
      EXPECT_NEAR(pace.get().decode_s(requests, 2000 * requests) / planted.decode_s(requests, 2000 * requests), 1, 0.1)
          << seed;
  }
}

TEST(step_pace, a_hundred_steps_are_enough_for_a_prediction_within_a_tenth) {
  step_pace pace;
  learn(pace, planted, 100, 3);
  EXPECT_NEAR(pace.get().decode_s(64, 1e5) / planted.decode_s(64, 1e5), 1, 0.1);
}

TEST(step_pace, one_wild_step_does_not_turn_it_over) {
  step_pace pace;
  learn(pace, planted, 1000, 1);
  const double before = pace.get().decode_s(64, 1e5);
  pace.learn_step(20, 64, 1e5, 0);
  EXPECT_NEAR(pace.get().decode_s(64, 1e5) / before, 1, 0.1);
  pace.learn_step(1e-6, 64, 1e5, 0);
  EXPECT_NEAR(pace.get().decode_s(64, 1e5) / before, 1, 0.1);
}

TEST(step_pace, stays_near_the_truth_when_hardly_anything_varies_for_long) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random{seed};
    step_pace pace;
    for (int regime = 0; regime < 10; ++regime) {
      const double requests = static_cast<double>(random() % (regime % 2 == 0 ? 3 : 250));
      const double kv = static_cast<double>(random() % 3000) * requests;
      for (int i = 0; i < 2000; ++i) {
        const bool wild = random() % 50 == 0;
        pace.learn_step(planted.decode_s(requests, kv) * (wild ? 20 : 1), requests, kv, 0);
      }
      const double seen = pace.get().decode_s(requests, kv) / planted.decode_s(requests, kv);
      ASSERT_GT(seen, 0.8) << seed << ", regime " << regime;
      ASSERT_LT(seen, 1.3) << seed << ", regime " << regime;
    }
    for (const double requests : {0.0, 1.0, 64.0, 256.0})
      EXPECT_LT(pace.get().decode_s(requests, 2000 * requests), 20 * planted.decode_s(requests, 2000 * requests))
          << seed;
  }
}

TEST(step_pace, steps_that_cannot_be_are_left_out) {
  step_pace pace;
  const auto before = pace.get();
  for (const double s : {0.0, -1.0, 61.0, std::nan("")})
    pace.learn_step(s, 10, 1000, 0);
  pace.learn_prefill(0, 0, 1000);
  pace.learn_prefill(1, 0, 0);
  EXPECT_EQ(pace.get().base_s, before.base_s);
  EXPECT_EQ(pace.get().per_request_s, before.per_request_s);
  EXPECT_EQ(pace.get().per_prefill_token_s, before.per_prefill_token_s);
}

TEST(step_pace, follows_an_engine_that_becomes_slower) {
  step_pace pace;
  learn(pace, planted, 2000, 1);
  auto slower = planted;
  slower.base_s *= 2;
  slower.per_request_s *= 2;
  slower.per_kv_token_s *= 2;
  learn(pace, slower, 4000, 2);
  EXPECT_NEAR(pace.get().decode_s(64, 1e5) / slower.decode_s(64, 1e5), 1, 0.15);
}

TEST(step_pace, no_coefficient_becomes_negative_whatever_is_observed) {
  std::mt19937_64 random{5};
  step_pace pace;
  for (int i = 0; i < 5000; ++i) {
    pace.learn_step(1e-4 + static_cast<double>(random() % 1000) * 1e-4, static_cast<double>(random() % 300),
                    static_cast<double>(random() % 1'000'000), 0);
    ASSERT_GE(pace.get().base_s, 0);
    ASSERT_GE(pace.get().per_request_s, 0);
    ASSERT_GE(pace.get().per_kv_token_s, 0);
  }
}

TEST(step_pace, prefill_speed_is_what_prompts_take_beside_decoding) {
  step_pace pace;
  for (int i = 0; i < 2000; ++i)
    pace.learn_prefill(0.05 + 4000 * planted.per_prefill_token_s, 0.05, 4000);
  EXPECT_NEAR(pace.get().per_prefill_token_s, planted.per_prefill_token_s, 0.01 * planted.per_prefill_token_s);
  // Decoding that seems to explain all of it leaves a little.
  step_pace other;
  for (int i = 0; i < 2000; ++i)
    other.learn_prefill(0.1, 0.5, 4000);
  EXPECT_GT(other.get().per_prefill_token_s, 0);
}

TEST(step_pace, the_prior_of_the_prefill_speed_outweighs_a_single_prompt) {
  step_pace pace;
  const double before = pace.get().per_prefill_token_s;
  pace.learn_prefill(1000 * before * 3, 0, 1000);
  EXPECT_LT(pace.get().per_prefill_token_s, 1.1 * before);
  EXPECT_GT(pace.get().per_prefill_token_s, before);
}

TEST(step_pace, a_term_that_seemed_to_cost_nothing_is_found_again) {
  step_pace pace;
  for (int i = 0; i < 5000; ++i)
    pace.learn_step(planted.decode_s(20 + i % 7, 40'000), 20 + i % 7, 40'000, 2000); // a cache that nobody told of
  EXPECT_LT(pace.get().per_prefill_token_s, 0.1 * step_pace{}.get().per_prefill_token_s);
  for (int i = 0; i < 2000; ++i)
    pace.learn_prefill(8000 * planted.per_prefill_token_s, 0, 8000);
  EXPECT_NEAR(pace.get().per_prefill_token_s / planted.per_prefill_token_s, 1, 0.1);
}

TEST(step_pace, a_stall_of_minutes_does_not_decide_what_prompts_take) {
  step_pace pace;
  for (int i = 0; i < 500; ++i)
    pace.learn_prefill(4000 * planted.per_prefill_token_s, 0, 4000);
  const double before = pace.get().per_prefill_token_s;
  for (const double stall : {600.0, 1e300, std::numeric_limits<double>::infinity()})
    pace.learn_prefill(stall, 0, 4000);
  EXPECT_LT(pace.get().per_prefill_token_s, 1.05 * before);
  for (int i = 0; i < 2000; ++i)
    pace.learn_prefill(10 * 4000 * planted.per_prefill_token_s, 0, 4000);
  EXPECT_NEAR(pace.get().per_prefill_token_s, 10 * planted.per_prefill_token_s, planted.per_prefill_token_s)
      << "what goes on is no stall";
}

// -- output lengths
// ---------------------------------------------------------------------------------------------

TEST(output_lengths, before_anything_was_seen_there_is_a_guess_within_what_was_asked_for) {
  const output_lengths lengths;
  EXPECT_EQ(lengths.expected(1000, 0), 256);
  EXPECT_EQ(lengths.expected(1000, 64), 64);
  EXPECT_EQ(lengths.expected(0, 1), 1);
}

TEST(output_lengths, each_size_of_prompt_has_its_own_and_the_others_speak_for_what_was_never_seen) {
  output_lengths lengths;
  for (int i = 0; i < 2000; ++i) {
    lengths.learn(100, 50);
    lengths.learn(10'000, 950);
  }
  EXPECT_NEAR(lengths.expected(100, 0), 50, 15);
  EXPECT_NEAR(lengths.expected(10'000, 0), 950, 15);
  EXPECT_NEAR(lengths.expected(1'000'000'000'000, 0), 500, 5);
  EXPECT_EQ(lengths.expected(10'000, 300), 300);
}

TEST(output_lengths, a_class_seen_once_counts_little) {
  output_lengths lengths;
  for (int i = 0; i < 1000; ++i)
    lengths.learn(100, 100);
  lengths.learn(10'000, 10'000);
  EXPECT_LT(lengths.expected(10'000, 0), 700);
  EXPECT_GT(lengths.expected(10'000, 0), 100);
}

TEST(output_lengths, follows_traffic_that_changes) {
  output_lengths lengths;
  for (int i = 0; i < 10'000; ++i)
    lengths.learn(100, 100);
  for (int i = 0; i < 5000; ++i)
    lengths.learn(100, 1000);
  EXPECT_GT(lengths.expected(100, 0), 950);
}

TEST(output_lengths, nothing_generated_is_expected_to_be_at_least_one_token) {
  output_lengths lengths;
  for (int i = 0; i < 1000; ++i)
    lengths.learn(100, 0);
  EXPECT_EQ(lengths.expected(100, 0), 1);
}

} // namespace
} // namespace rankwise::core
