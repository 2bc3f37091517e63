#include "tests/actors/node_simulation.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace rankwise {
namespace {

using test::planted_bug;
using test::simulate;
using test::simulation_counts;
using test::simulation_options;

struct seed_range {
  std::uint64_t first = 1;
  std::uint64_t last = 1000;
};

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

/// RANKWISE_SEED=N runs one seed and prints its every step, RANKWISE_SEEDS=first-last a range of them.
seed_range wanted_seeds() {
  if (const char* one = std::getenv("RANKWISE_SEED"))
    if (const auto seed = number(one))
      return {*seed, *seed};
  if (const char* range = std::getenv("RANKWISE_SEEDS")) {
    const std::string_view text{range};
    const auto dash = text.find('-');
    const auto first = number(text.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
    if (first && last)
      return {*first, *last};
  }
  return {};
}

bool one_seed_is_looked_at() {
  return std::getenv("RANKWISE_SEED") != nullptr;
}

class node_simulation : public testing::Test {
 protected:
  node_simulation() { spdlog::set_level(one_seed_is_looked_at() ? spdlog::level::info : spdlog::level::off); }

  /// The first of some seeds whose run shows a violation.
  static std::optional<std::uint64_t> first_seed_that_catches(planted_bug bug, std::uint64_t seeds) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      simulation_options options;
      options.seed = seed;
      options.bug = bug;
      if (!simulate(options).violations.empty())
        return seed;
    }
    return std::nullopt;
  }
};

TEST_F(node_simulation, keeps_every_promise_under_every_seed) {
  const auto seeds = wanted_seeds();
  simulation_counts sum;
  std::uint64_t hash = 0;
  for (auto seed = seeds.first; seed <= seeds.last; ++seed) {
    simulation_options options;
    options.seed = seed;
    options.trace = one_seed_is_looked_at();
    const auto result = simulate(options);
    sum += result.counts;
    hash = hash * 31 + result.hash;
    if (result.violations.empty())
      continue;
    std::string all;
    for (const auto& violation : result.violations)
      all += "\n  " + violation;
    ADD_FAILURE() << "seed " << seed << ":" << all << "\nagain, with every step: RANKWISE_SEED=" << seed
                  << " build/release/bin/rankwise_simulation_test --gtest_filter='*every_seed'";
  }
  fmt::print("seeds {}-{}, hash {:016x}: {} requests ({} completed, {} failed, {} cancelled, {} refused), {} tokens, "
             "{} moved, "
             "{} faults, {} actor crashes, {} later epochs, {} messages\n",
             seeds.first, seeds.last, hash, sum.requests, sum.completed, sum.failed, sum.cancelled, sum.refused,
             sum.tokens, sum.moved, sum.faults, sum.actor_crashes, sum.epochs, sum.messages);
}

TEST_F(node_simulation, keeps_every_promise_with_one_two_and_four_request_managers) {
  for (const std::uint16_t managers : {std::uint16_t{1}, std::uint16_t{2}, std::uint16_t{4}}) {
    for (std::uint64_t seed = 2001; seed <= 2100; ++seed) {
      simulation_options options;
      options.seed = seed;
      options.managers = managers;
      for (const auto& violation : simulate(options).violations)
        ADD_FAILURE() << managers << " managers, seed " << seed << ": " << violation;
    }
  }
}

TEST_F(node_simulation, gives_the_same_history_for_the_same_seed) {
  std::uint64_t before = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    simulation_options options;
    options.seed = seed;
    const auto first = simulate(options);
    const auto second = simulate(options);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_NE(first.hash, before) << "seed " << seed;
    before = first.hash;
  }
}

TEST_F(node_simulation, decisions_are_made_again_from_their_log_also_of_controllers_that_were_restarted) {
  simulation_counts sum;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    simulation_options options;
    options.seed = seed;
    const auto plain = simulate(options);
    options.record_decisions = true;
    const auto recorded = simulate(options);
    EXPECT_EQ(recorded.hash, plain.hash) << "recording changed the run of seed " << seed;
    for (const auto& violation : recorded.violations)
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    sum += recorded.counts;
  }
  EXPECT_GT(sum.decisions_replayed, 5'000U);
}

TEST_F(node_simulation, catches_a_charge_that_is_released_twice) {
  EXPECT_TRUE(first_seed_that_catches(planted_bug::charge_released_twice, 20));
}

TEST_F(node_simulation, catches_an_epoch_that_is_not_compared) {
  EXPECT_TRUE(first_seed_that_catches(planted_bug::epoch_not_compared, 5000));
}

TEST_F(node_simulation, catches_an_abort_that_overtakes_its_request) {
  EXPECT_TRUE(first_seed_that_catches(planted_bug::abort_overtakes_its_request, 100));
}

TEST_F(node_simulation, catches_a_token_that_is_delivered_after_the_outcome) {
  EXPECT_TRUE(first_seed_that_catches(planted_bug::token_delivered_after_outcome, 10));
}

} // namespace
} // namespace rankwise
