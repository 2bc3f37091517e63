#include "core/rank/outstanding_legs.hpp"

#include <gmock/gmock.h>

namespace rankwise::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

leg_id leg_of(owner_id owner, std::uint32_t slot, std::uint32_t attempt = 0) {
  return {make_handle(owner, 1, slot), attempt};
}

TEST(outstanding_legs, a_leg_is_aborted_once_and_only_while_it_runs) {
  outstanding_legs legs;
  EXPECT_TRUE(legs.add(leg_of(1, 1), "a"));
  EXPECT_FALSE(legs.add(leg_of(1, 1), "a")) << "it runs";
  EXPECT_EQ(legs.take(leg_of(1, 1, 1)), std::nullopt) << "of another attempt";
  EXPECT_EQ(legs.take(leg_of(1, 1)), "a");
  EXPECT_EQ(legs.take(leg_of(1, 1)), std::nullopt);
  legs.add(leg_of(1, 2), "b");
  legs.forget(leg_of(1, 2)); // it ended by itself
  EXPECT_EQ(legs.take(leg_of(1, 2)), std::nullopt);
  EXPECT_EQ(legs.size(), 0u);
}

TEST(outstanding_legs, what_an_owner_had_is_taken_and_that_of_others_stays) {
  outstanding_legs legs;
  legs.add(leg_of(1, 2), "b");
  legs.add(leg_of(2, 1), "other");
  legs.add(leg_of(1, 1), "a");
  EXPECT_THAT(legs.take_all_of(1), ElementsAre("a", "b"));
  EXPECT_THAT(legs.take_all_of(1), IsEmpty());
  EXPECT_THAT(legs.take_all(), ElementsAre("other"));
}

TEST(outstanding_legs, comparing_finds_what_was_never_sent_and_what_nobody_wants) {
  outstanding_legs legs;
  legs.add(leg_of(1, 1), "kept");
  legs.add(leg_of(1, 2), "unwanted");
  legs.add(leg_of(2, 3), "of another owner");
  const std::vector<leg_id> told{leg_of(1, 9), leg_of(1, 1)};
  const auto difference = legs.compare(1, told);
  EXPECT_THAT(difference.unwanted, ElementsAre("unwanted"));
  EXPECT_THAT(difference.never_sent, ElementsAre(leg_of(1, 9)));
  EXPECT_THAT(legs.legs(), ElementsAre(leg_of(1, 1), leg_of(2, 3)));
}

} // namespace
} // namespace rankwise::core
