#include "record/request_stream.hpp"

#include "core/placement/pool_controller.hpp"
#include "sim/workload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rankwise::record {
namespace {

using std::chrono::seconds;

core::timestamp at(int s) {
  return core::timestamp{} + seconds{100 + s};
}

core::leg_request leg(core::request_handle handle, int s, std::uint32_t attempt = 0) {
  core::leg_request l;
  l.wanted.handle = handle;
  l.wanted.now = at(s);
  l.wanted.prompt_tokens = 10 * handle;
  l.wanted.max_new_tokens = 50;
  l.attempt = attempt;
  return l;
}

TEST(request_stream, nothing_is_kept_until_somebody_takes_and_again_when_nobody_has_for_long) {
  request_stream stream;
  EXPECT_FALSE(stream.wanted());
  EXPECT_EQ(stream.take(0, at(0)).last, 0u);
  EXPECT_TRUE(stream.wanted());
  stream.arrived(leg(1, 1));
  stream.ended(1, 7, at(1));
  EXPECT_EQ(stream.take(0, at(2)).requests.size(), 1u);
  EXPECT_EQ(stream.take(std::nullopt, at(2)).last, 1u);
  EXPECT_TRUE(stream.take(std::nullopt, at(2)).requests.empty()) << "only where it is";
  stream.arrived(leg(2, 33));
  EXPECT_FALSE(stream.wanted()) << "30 s without a taker";
  EXPECT_TRUE(stream.take(0, at(40)).requests.empty());
}

TEST(request_stream, a_request_is_told_once_with_its_first_arrival_whatever_it_asked_for_again) {
  request_stream stream;
  static_cast<void>(stream.take(0, at(0)));
  stream.arrived(leg(1, 1)); // it waits
  stream.arrived(leg(1, 3));
  stream.arrived(leg(2, 2, 1)); // it moves from a rank that was lost, and came before anybody recorded
  stream.ended(2, 9, at(3));
  stream.ended(1, 7, at(3));
  stream.ended(1, 7, at(3));
  const auto taken = stream.take(0, at(4));
  ASSERT_EQ(taken.requests.size(), 1u);
  EXPECT_EQ(taken.requests[0]->arrival, at(1));
  EXPECT_EQ(taken.requests[0]->input_tokens, 10u);
  EXPECT_EQ(taken.requests[0]->output_tokens, 7u);
}

TEST(request_stream, what_ends_faster_than_it_is_taken_is_counted_and_told_a_thousand_at_a_time) {
  request_stream stream;
  static_cast<void>(stream.take(0, at(0)));
  for (core::request_handle h = 1; h <= request_stream::requests_max + 10; ++h) {
    stream.arrived(leg(h, 1));
    stream.ended(h, 1, at(1));
  }
  std::uint64_t after = 0;
  std::size_t told = 0;
  std::uint64_t lost = 0;
  for (bool more = true; more;) {
    const auto taken = stream.take(after, at(2));
    EXPECT_LE(taken.requests.size(), request_stream::answer_max);
    EXPECT_EQ(taken.requests.front()->number, after == 0 ? 11u : after + 1);
    told += taken.requests.size();
    lost += taken.lost;
    after = taken.last;
    more = taken.more;
  }
  EXPECT_EQ(told, request_stream::requests_max);
  EXPECT_EQ(lost, 10u);
  EXPECT_EQ(stream.take(after, at(2)).lost, 0u);
}

TEST(request_stream, of_too_many_that_never_end_the_oldest_goes_and_no_other) {
  request_stream stream;
  static_cast<void>(stream.take(0, at(0)));
  for (core::request_handle h = 1; h <= request_stream::requests_max + 1; ++h)
    stream.arrived(leg(h, 1));
  stream.ended(1, 5, at(1));
  stream.ended(2, 5, at(1));
  const auto taken = stream.take(0, at(2));
  EXPECT_EQ(taken.lost, 1u);
  ASSERT_EQ(taken.requests.size(), 1u);
  EXPECT_EQ(taken.requests[0]->input_tokens, 20u);
}

TEST(request_stream, one_that_is_placed_again_after_it_ended_without_output_goes_on) {
  request_stream stream;
  stream_recorder recorder{stream, core::pool_role::unified};
  static_cast<void>(stream.take(0, at(0)));
  core::placement_decision placed;
  recorder.decided(leg(1, 1), placed);
  recorder.decided(leg(2, 1), placed);
  recorder.ended(1, at(1), 0); // its rank's queue was full
  recorder.ended(2, at(1), 0); // its client gave up
  recorder.decided(leg(1, 2, 1), placed);
  recorder.ended(1, at(3), 9);
  auto taken = stream.take(0, at(3));
  ASSERT_EQ(taken.requests.size(), 2u);
  EXPECT_EQ(taken.requests[0]->input_tokens, 20u);
  EXPECT_FALSE(taken.requests[0]->output_tokens);
  EXPECT_EQ(taken.requests[1]->output_tokens, 9u);
  // Nor does an order that is sent twice end what runs.
  recorder.decided(leg(3, 4), placed);
  core::placement_decision refused;
  refused.what = core::placement_decision::kind::refused;
  refused.reason = core::failure::duplicate_rid;
  recorder.decided(leg(3, 4), refused);
  recorder.ended(3, at(9), 4);
  EXPECT_EQ(stream.take(taken.last, at(9)).requests.at(0)->output_tokens, 4u);
}

TEST(request_stream, one_that_left_while_it_waited_ends_without_output) {
  request_stream stream;
  stream_recorder decode{stream, core::pool_role::decode};
  stream_recorder prefill{stream, core::pool_role::prefill};
  static_cast<void>(stream.take(0, at(0)));
  prefill.waits(leg(1, 1));
  prefill.left(1, at(2));
  prefill.waits(leg(2, 1));
  core::placement_decision refused;
  refused.what = core::placement_decision::kind::refused;
  refused.reason = core::failure::requests_in_flight_max;
  decode.decided(leg(2, 2), refused);
  const auto taken = stream.take(0, at(10));
  ASSERT_EQ(taken.requests.size(), 2u);
  EXPECT_FALSE(taken.requests[0]->output_tokens || taken.requests[1]->output_tokens);
}

TEST(request_stream, a_request_that_waited_since_before_the_recording_has_the_time_at_which_it_came) {
  request_stream stream;
  static_cast<void>(stream.take(0, at(5)));
  auto waited = leg(1, 6);
  waited.received_at = at(1);
  waited.wanted.first_token_by = at(3);
  stream.arrived(waited);
  stream.ended(1, 5, at(7));
  const auto taken = stream.take(0, at(7));
  EXPECT_EQ(taken.requests.at(0)->arrival, at(1));
  EXPECT_EQ(taken.requests.at(0)->first_token_within_s, 2.0);
}

TEST(request_stream, of_a_pair_the_prefill_pool_tells_the_arrival_and_the_decode_pool_the_end) {
  request_stream stream;
  stream_recorder prefill{stream, core::pool_role::prefill};
  stream_recorder decode{stream, core::pool_role::decode};
  static_cast<void>(stream.take(0, at(0)));
  const core::placement_decision placed;
  prefill.decided(leg(4, 1), placed);
  decode.decided(leg(4, 2), placed);
  core::batch_progress ends;
  ends.ended = {4};
  ends.ended_tokens = {0};
  prefill.progress(ends, at(3));
  EXPECT_EQ(stream.take(0, at(3)).last, 0u);
  ends.ended_tokens = {17};
  decode.progress(ends, at(5));
  const auto taken = stream.take(0, at(6));
  ASSERT_EQ(taken.requests.size(), 1u);
  EXPECT_EQ(taken.requests[0]->arrival, at(1));
  EXPECT_EQ(taken.requests[0]->output_tokens, 17u);
}

TEST(request_stream, its_file_is_a_workload) {
  request_stream stream{256};
  static_cast<void>(stream.take(0, at(0)));
  auto with_blocks = leg(60, 2);
  const std::uint64_t blocks[] = {0xffff'ffff'ffff'fffe, 3};
  with_blocks.wanted.blocks = blocks;
  with_blocks.wanted.block_tokens = 256;
  with_blocks.wanted.priority = -2;
  with_blocks.wanted.first_token_by = at(2) + std::chrono::milliseconds{1500};
  stream.arrived(leg(1, 1));
  stream.arrived(with_blocks);
  stream.ended(60, 5, at(2));
  stream.ended(1, std::nullopt, at(2));
  const auto taken = stream.take(0, at(4));
  std::string text = request_file_head(stream.block_tokens()).dump() + "\n";
  for (const auto& r : taken.requests)
    text += request_line(*r, at(0)).dump() + "\n";
  const auto load = sim::parse_trace(text, "recorded", 1);
  ASSERT_TRUE(load) << to_string(load.error());
  EXPECT_EQ(load->block_tokens, 256u);
  ASSERT_EQ(load->requests.size(), 2u);
  EXPECT_EQ(load->requests[0].input_tokens, 10u);
  EXPECT_EQ(load->requests[0].output_tokens, 1u) << "not known";
  EXPECT_EQ(load->requests[1].arrival_s, 1);
  EXPECT_EQ(load->requests[1].output_tokens, 5u);
  EXPECT_EQ(load->requests[1].priority, -2);
  EXPECT_DOUBLE_EQ(load->requests[1].deadline_s.value(), 1.5);
  EXPECT_THAT(load->requests[1].prefix_blocks, testing::ElementsAre(0xffff'ffff'ffff'fffe, 3));
}

TEST(request_stream, a_file_that_is_wrong_is_told_with_line_field_and_value) {
  const std::string head = R"({"rankwise_requests":1,"block_tokens":256})";
  const auto error = [&](const std::string& first, const std::string& line) {
    const auto load = sim::parse_trace(first + "\n" + line + "\n", "f", 1);
    return load ? std::string{"read"} : to_string(load.error());
  };
  const std::string good = R"({"arrival_s":0,"input_tokens":5,"output_tokens":5})";
  EXPECT_EQ(error(head, good), "read");
  EXPECT_THAT(error(R"({"rankwise_requests":2,"block_tokens":256})", good),
              testing::HasSubstr("f:1: rankwise_requests"));
  EXPECT_THAT(error(R"({"rankwise_requests":"1","block_tokens":256})", good),
              testing::HasSubstr("f:1: rankwise_requests"));
  EXPECT_THAT(error(head, R"({"arrival_s":1e300,"input_tokens":5})"), testing::HasSubstr("arrival_s: \"1e+300\""));
  EXPECT_THAT(error(head, R"({"arrival_s":0,"input_tokens":5,"first_token_within_s":1e10})"),
              testing::HasSubstr("first_token_within_s"));
  EXPECT_THAT(error(R"({"rankwise_requests":1})", good), testing::HasSubstr("f:1: block_tokens"));
  EXPECT_THAT(error(head, R"({"arrival_s":"x","input_tokens":5})"), testing::HasSubstr("f:2: arrival_s: \"\"x\"\""));
  EXPECT_THAT(error(head, R"({"arrival_s":0,"input_tokens":0})"), testing::HasSubstr("f:2: input_tokens: \"0\""));
  EXPECT_THAT(error(head, R"({"arrival_s":0,"input_tokens":5,"output_tokens":-1})"),
              testing::HasSubstr("output_tokens"));
  EXPECT_THAT(error(head, R"({"arrival_s":0,"input_tokens":5,"blocks":[-1]})"), testing::HasSubstr("blocks: \"-1\""));
  EXPECT_THAT(error(head, R"({"arrival_s":0,"input_tokens":5,"priority":9})"), testing::HasSubstr("priority: \"9\""));
  EXPECT_THAT(error(head, "junk"), testing::HasSubstr("f:2"));
}

} // namespace
} // namespace rankwise::record
