#include "model_driver.hpp"
#include "sim/lockstep_group.hpp"

namespace rankwise::sim {
namespace {

struct lockstep_pair {
  lockstep_pair() : fast(plain_options(), 1), slow(slow_options(), 2), group({&fast, &slow}), outputs(2) {}

  static engine_rank_options slow_options() {
    auto options = plain_options();
    options.faults.slow_factor = 5;
    return options;
  }
  /// Counts outputs per rank until nothing is due.
  void run() {
    for (auto next = group.next_event_time(); next; next = group.next_event_time()) {
      now = std::max(now, *next);
      group.step(now, outputs);
      for (std::size_t i = 0; i < 2; ++i) {
        tokens[i] += outputs[i].batch.tokens.size();
        outputs[i].clear();
      }
    }
  }

  engine_rank_model fast;
  engine_rank_model slow;
  lockstep_group group;
  std::vector<rank_outputs> outputs;
  core::timestamp now{};
  std::size_t tokens[2] = {0, 0};
};

TEST(lockstep_group_test, every_step_lasts_as_long_as_the_slowest) {
  lockstep_pair pair;
  pair.fast.add(pair.now, ask("f", 10, 10), pair.outputs[0]);
  pair.slow.add(pair.now, ask("s", 10, 5), pair.outputs[1]);
  pair.run();
  EXPECT_EQ(pair.tokens[0], 10U);
  EXPECT_EQ(pair.tokens[1], 5U);
  EXPECT_NEAR(core::to_seconds(pair.now - core::timestamp{}), 5 * 0.050 + 5 * 0.010, 0.001);
}

TEST(lockstep_group_test, an_idle_rank_takes_part_and_a_new_request_waits_for_the_common_step) {
  lockstep_pair pair;
  pair.slow.add(pair.now, ask("s", 10, 3), pair.outputs[1]);
  pair.group.step(pair.now, pair.outputs);
  pair.now += std::chrono::milliseconds(5);
  pair.fast.add(pair.now, ask("f", 10, 1), pair.outputs[0]);
  EXPECT_GE(*pair.group.next_event_time(), core::timestamp{} + std::chrono::milliseconds(50));
  pair.run();
  EXPECT_EQ(pair.tokens[0], 1U);
  EXPECT_NEAR(core::to_seconds(pair.now - core::timestamp{}), 3 * 0.050, 0.001);
}

TEST(lockstep_group_test, one_frozen_rank_stops_them_all) {
  auto options = plain_options();
  options.faults.freeze_after_requests = 1;
  engine_rank_model frozen(options, 1);
  engine_rank_model other(plain_options(), 2);
  lockstep_group group({&frozen, &other});
  std::vector<rank_outputs> outputs(2);
  other.add({}, ask("o", 10, 10), outputs[1]);
  EXPECT_TRUE(group.next_event_time());
  frozen.add({}, ask("f", 10, 10), outputs[0]);
  EXPECT_FALSE(group.next_event_time());
  group.step({}, outputs);
  EXPECT_TRUE(outputs[1].batch.items.empty());
}

TEST(lockstep_group_test, an_idle_group_has_nothing_to_do) {
  lockstep_pair pair;
  EXPECT_FALSE(pair.group.next_event_time());
}

} // namespace
} // namespace rankwise::sim
