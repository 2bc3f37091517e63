#include "sim/suite.hpp"

#include <gtest/gtest.h>

#include <map>

namespace rankwise::sim {
namespace {

/// What the short form must never fall behind: built-in workloads, 12 scenarios at nine tenths of what the pool can do.
TEST(suite, headroom_stays_ahead_of_the_best_peer_of_each_figure_in_the_short_form) {
  suite_settings settings;
  settings.short_form = true;
  const auto result = run_suite(settings);
  std::map<std::string, double> geometric;
  for (const auto& f : result.figures)
    if (f.scenario == "all, 0.9")
      geometric[f.metric] = f.value;
  ASSERT_EQ(geometric.size(), 5U);
  EXPECT_LE(geometric["ttft_mean_s_over_best_peer's_geometric_mean"], 1.0);
  EXPECT_LE(geometric["ttft_p99_s_over_best_peer's_geometric_mean"], 1.04);
  EXPECT_LE(geometric["slowdown_p99_over_best_peer's_geometric_mean"], 0.8);
  EXPECT_LE(geometric["gap_p99_s_over_best_peer's_geometric_mean"], 0.96);
  EXPECT_LE(geometric["gap_p50_s_over_best_peer's_geometric_mean"], 1.02);
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
