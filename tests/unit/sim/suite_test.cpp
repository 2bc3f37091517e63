#include "sim/suite.hpp"

#include <gtest/gtest.h>

#include <map>

namespace rankwise::sim {
namespace {

/// Every figure says its sample. A half of 8 scenarios (two workloads, two shapes, two couplings) is asked for as
/// `least`.
void expect_samples_and_shares(const suite_result& result, double least, const std::string& target) {
  int shares = 0;
  for (const auto& f : result.figures) {
    EXPECT_GT(f.sample.n, 0U) << f.scenario << " " << f.metric;
    EXPECT_TRUE(f.sample.unit == "requests" || f.sample.unit == "scenarios") << f.scenario << " " << f.metric;
    if (!f.metric.starts_with("share_"))
      continue;
    ++shares;
    const bool half = f.scenario == "unified and pd, 0.9";
    EXPECT_EQ(f.target, half ? target : "= 1") << f.metric;
    EXPECT_EQ(f.holds, f.value >= (half ? least : 1)) << f.metric << " " << f.value;
    if (half) {
      EXPECT_EQ(f.sample.n, 8U) << f.metric;
    }
  }
  EXPECT_EQ(shares, 9);
}

/// What the short form must never fall behind: built-in workloads, 12 scenarios at nine tenths of what the pool can do.
/// The same seed gives the same figures, so that these bounds are those of a change to the rules, not of chance.
TEST(suite, headroom_stays_ahead_of_the_best_peer_of_each_figure_in_the_short_form) {
  suite_settings settings;
  settings.short_form = true;
  const auto result = run_suite(settings);
  expect_samples_and_shares(result, 0.125, ">= 0.125 (0.5 at 99 %)");
  std::map<std::string, double> geometric;
  for (const auto& f : result.figures) {
    if (f.scenario == "all, 0.9") {
      geometric[f.metric] = f.value;
      EXPECT_EQ(f.sample.n, 12U);
      EXPECT_EQ(f.sample.unit, "scenarios");
    } else if (f.target == "<= 1.01 x best peer") {
      EXPECT_EQ(f.sample.n, 3000U) << f.scenario;
      EXPECT_EQ(f.sample.unit, "requests") << f.scenario;
    }
  }
  ASSERT_EQ(geometric.size(), 5U);
  EXPECT_LE(geometric["ttft_mean_s_over_best_peer's_geometric_mean"], 1.0);
  EXPECT_LE(geometric["ttft_p99_s_over_best_peer's_geometric_mean"], 1.04);
  EXPECT_LE(geometric["slowdown_p99_over_best_peer's_geometric_mean"], 0.8);
  EXPECT_LE(geometric["gap_p99_s_over_best_peer's_geometric_mean"], 0.96);
  EXPECT_LE(geometric["gap_p50_s_over_best_peer's_geometric_mean"], 1.02);
}

TEST(suite, the_fewest_at_99_percent_is_the_count_below_which_a_claim_is_refuted) {
  // Of 8 at a half: P(0) = 0.0039, P(at most 1) = 0.035. Of 20: P(at most 4) = 0.0059, P(at most 5) = 0.021.
  EXPECT_EQ(fewest_at_99_percent(8, 0.5), 1U);
  EXPECT_EQ(fewest_at_99_percent(20, 0.5), 5U);
  EXPECT_EQ(fewest_at_99_percent(6, 0.5), 0U) << "P(0) = 0.016: 6 cannot refute it";
  EXPECT_EQ(fewest_at_99_percent(7, 0.5), 1U);
  EXPECT_EQ(fewest_at_99_percent(12, 1), 12U) << "one exception refutes it";
  EXPECT_EQ(fewest_at_99_percent(0, 0.5), 0U);
  EXPECT_EQ(fewest_at_99_percent(8, 0), 0U);
  // Of very many it comes near the claim.
  EXPECT_GT(fewest_at_99_percent(1000, 0.5), 450U);
  EXPECT_LT(fewest_at_99_percent(1000, 0.5), 500U);
  EXPECT_GT(fewest_at_99_percent(100'000, 0.5), 49'500U);
  EXPECT_LT(fewest_at_99_percent(100'000, 0.5), 50'000U);
}

TEST(suite, the_starvation_bound_is_what_ends_first_of_patience_and_time) {
  core::pool_options pool;
  pool.waiting_time_max = std::chrono::hours{1};
  pool.waiting_order.patience_max = std::chrono::seconds{600};
  EXPECT_EQ(starvation_bound_s(pool), 600);
  pool.waiting_time_max = std::chrono::seconds{10};
  EXPECT_EQ(starvation_bound_s(pool), 10);
}

TEST(suite, the_long_form_has_64_ranks_built_in_workloads_and_the_longest_wait_under_overload) {
  suite_settings settings;
  settings.requests_max = 200;
  // Many wait, and the bound is so short that all of them reach it.
  settings.tuning.headroom_credit_chunks = 0.2;
  settings.waiting_patience_max = std::chrono::milliseconds{1};
  const auto result = run_suite(settings);
  expect_samples_and_shares(result, 0.5, ">= 0.5");
  std::map<std::string, int> compared; // scenario: rows with a target
  int waits = 0;
  int broken = 0;
  for (const auto& f : result.figures) {
    if (f.metric == "wait_max_s") {
      ++waits;
      EXPECT_NE(f.scenario.find("1.1"), std::string::npos) << f.scenario;
      EXPECT_EQ(f.target, "<= 0.001 and a tick") << f.scenario;
      EXPECT_EQ(f.holds, f.value <= 0.251) << f.scenario;
      broken += f.holds ? 0 : 1;
    } else if (f.target == "<= 1.01 x best peer") {
      ++compared[f.scenario];
      EXPECT_EQ(f.holds, f.value <= 1.01 * f.best_peer_value) << f.scenario << " " << f.metric;
    }
  }
  EXPECT_EQ(broken, 0);
  EXPECT_EQ(waits, 12) << "two workloads, three shapes, two couplings";
  for (const char* scenario :
       {"mixed whole unified independent 0.9, 64 ranks", "built-in giants unified independent 0.9",
        "built-in shared-prompts unified independent 0.9 with prefix cache",
        "built-in agents unified independent 0.9 with prefix cache",
        "built-in closed-loop unified independent, 200 clients", "mixed unified lockstep 0.7"})
    EXPECT_EQ(compared[scenario], 5) << scenario;
}

} // namespace
} // namespace rankwise::sim
