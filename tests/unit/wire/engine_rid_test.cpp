#include "wire/sglang/engine_rid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace rankwise::wire::sglang {
namespace {

TEST(engine_rid_test, names_client_sample_handle_and_attempt) {
  EXPECT_EQ(make_engine_rid("r1", std::nullopt, 35, 0), "r1~z.0!");
  EXPECT_EQ(make_engine_rid("r1", 2, 36, 11), "r1-2~10.11!");
  EXPECT_EQ(make_engine_rid("r1", std::nullopt, 35, 0, 37), "r1~z.0.11!");
  EXPECT_EQ(parse_engine_rid("r1~z.0.11!")->boot, 37U);
  EXPECT_EQ(parse_engine_rid("r1~z.0!")->boot, 0U);
  EXPECT_EQ(client_part("r1~z.0.11!"), "r1");
}

TEST(engine_rid_test, what_was_made_is_parsed_back) {
  for (const core::request_handle handle :
       {core::request_handle{1}, core::request_handle{1} << 24, ~core::request_handle{0}}) {
    const auto parsed = parse_engine_rid(make_engine_rid("any~thing.0", std::nullopt, handle, 4'294'967'295U));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->handle, handle);
    EXPECT_EQ(parsed->attempt, 4'294'967'295U);
  }
}

TEST(engine_rid_test, a_rid_that_is_not_ours_is_refused) {
  for (const auto* rid : {"", "~", "r~", "r~1", "r~1.", "r~.1", "r~1.x", "r~1.0x", "r~ 1.0", "r~-1.0",
                          "r~zzzzzzzzzzzzzz.0", "r~1.4294967296", "plain", "r~!", "r~1.0!!"}) {
    EXPECT_FALSE(parse_engine_rid(rid)) << rid;
  }
}

TEST(engine_rid_test, client_part_ends_at_the_last_tilde_of_a_rid_of_ours) {
  EXPECT_EQ(client_part("a~b~c.0"), "a~b");
  EXPECT_EQ(client_part("a~b"), "a~b");
  EXPECT_EQ(client_part(make_engine_rid("r", 1, 7, 0)), "r-1");
}

TEST(engine_rid_test, no_rid_is_the_beginning_of_another) {
  std::vector<std::string> rids;
  for (const std::string client : {"a", "ab", "a~1.1", "a~1.1!", "a~1.1!~1.1", "a-1", ""})
    for (const core::request_handle handle :
         {core::request_handle{1}, core::request_handle{36}, core::request_handle{1296}})
      for (const std::uint32_t attempt : {0U, 1U, 10U, 11U})
        for (const core::node_boot boot : {0U, 1U, 11U})
          for (const std::optional<std::uint32_t> sample : {std::optional<std::uint32_t>{}, {1}, {11}})
            rids.push_back(make_engine_rid(client, sample, handle, attempt, boot));
  std::sort(rids.begin(), rids.end());
  rids.erase(std::unique(rids.begin(), rids.end()), rids.end()); // the handle tells them apart, not the client
  for (std::size_t i = 1; i < rids.size(); ++i)                  // the longer one stands right behind its beginning
    EXPECT_FALSE(rids[i].starts_with(rids[i - 1])) << rids[i - 1] << " and " << rids[i];
}

TEST(engine_rid_test, rids_of_the_release_before_are_known_as_ours) {
  const auto rid = parse_engine_rid("r1~z.3.11");
  ASSERT_TRUE(rid);
  EXPECT_EQ(rid->handle, 35U);
  EXPECT_EQ(rid->attempt, 3U);
  EXPECT_EQ(rid->boot, 37U);
}

TEST(engine_rid_test, token_values_follow_the_python_harness) {
  EXPECT_EQ(rid_crc32("123456789"), 0xcbf43926U); // the check value of CRC-32
  EXPECT_EQ(expected_token(rid_crc32("123456789"), 0), static_cast<std::int32_t>(0xcbf43926U % 94));
  EXPECT_EQ(expected_token(4'294'967'295U, 1), static_cast<std::int32_t>((std::uint64_t{1} << 32) % 94));
}

} // namespace
} // namespace rankwise::wire::sglang
