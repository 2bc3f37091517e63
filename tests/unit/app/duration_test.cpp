#include "app/options/duration.hpp"

#include "app/demo/demo_faults.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rankwise::app {
namespace {

using testing::HasSubstr;

TEST(durations, are_read_in_every_unit_and_a_number_alone_counts_seconds) {
  EXPECT_EQ(parse_duration("8s"), 8.0);
  EXPECT_EQ(parse_duration("8"), 8.0);
  EXPECT_EQ(parse_duration("500ms"), 0.5);
  EXPECT_EQ(parse_duration("20us"), 20e-6);
  EXPECT_EQ(parse_duration("1.5m"), 90.0);
  EXPECT_EQ(parse_duration("2h"), 7200.0);
  EXPECT_EQ(parse_duration("0"), 0.0);
}

TEST(durations, of_an_option_in_milliseconds_are_exactly_the_number_that_was_written) {
  EXPECT_EQ(parse_duration("50", time_unit::milliseconds), 50.0);
  EXPECT_EQ(parse_duration("0.07ms", time_unit::milliseconds), 0.07);
  EXPECT_EQ(parse_duration("0.05s", time_unit::milliseconds), 50.0);
  EXPECT_EQ(parse_duration("0.02", time_unit::microseconds), 0.02);
  EXPECT_EQ(parse_duration("1m", time_unit::milliseconds), 60'000.0);
}

TEST(durations, that_are_none_are_told_from_those_that_are) {
  for (const auto* text : {"", "s", "ms", "8x", "8 s", "-1s", "1e400", "inf", "nan", "8sm", "0x10", "1d", "1h30m"})
    EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(durations, are_shown_without_exponents) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(1e7), "10000000s");
  EXPECT_EQ(duration_text(0.1), "100ms");
  EXPECT_EQ(duration_text(1e-6), "1us");
  EXPECT_EQ(plain_digits(1e15), "1000000000000000");
}

TEST(durations, of_a_fault_have_every_unit_too) {
  const auto fault = parse_fault("freeze:decode/2@1.5m+500ms");
  ASSERT_TRUE(fault) << fault.error();
  EXPECT_EQ(fault->at_s, 90);
  EXPECT_EQ(fault->for_s, 0.5);
  const auto wrong = parse_fault("kill:decode/2@soon");
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error(), HasSubstr("\"soon\" is not a time: a number with us, ms, s, m or h"));
}

TEST(durations, are_no_rate_of_a_fault) {
  EXPECT_TRUE(parse_fault("crash:load_forwarder@2s+10s*10"));
  EXPECT_FALSE(parse_fault("crash:load_forwarder@2s+10s*10s"));
}

} // namespace
} // namespace rankwise::app
