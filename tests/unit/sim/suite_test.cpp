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

} // namespace
} // namespace rankwise::sim
