#include "io/grpc/message_reader.hpp"
#include "io/grpc/protocol.hpp"
#include "io/grpc/status.hpp"
#include "raw_client.hpp"

#include <gtest/gtest.h>

namespace rankwise::io::grpc {
namespace {

using namespace std::chrono_literals;
using testing::framed;

TEST(grpc_timeout, every_unit_is_understood) {
  EXPECT_EQ(parse_timeout("2H"), 2h);
  EXPECT_EQ(parse_timeout("3M"), 3min);
  EXPECT_EQ(parse_timeout("4S"), 4s);
  EXPECT_EQ(parse_timeout("5m"), 5ms);
  EXPECT_EQ(parse_timeout("6u"), 6us);
  EXPECT_EQ(parse_timeout("7n"), 7ns);
  EXPECT_EQ(parse_timeout("0n"), 0ns);
}

TEST(grpc_timeout, the_longest_ones_do_not_overflow) {
  EXPECT_GT(parse_timeout("99999999H"), 24h * 365 * 99);
  EXPECT_GT(parse_timeout("99999999M"), 24h * 365 * 99);
  EXPECT_EQ(parse_timeout("99999999S"), 99999999s);
}

TEST(grpc_timeout, anything_else_is_malformed) {
  for (const auto* bad : {"", "S", "5", "123456789S", "-1S", "+1S", "1 S", "1s", "1x", "0x1S", "1.5S"}) {
    EXPECT_EQ(parse_timeout(bad), std::nullopt) << bad;
  }
}

TEST(grpc_message, only_printable_ascii_but_percent_stays_as_it_is) {
  EXPECT_EQ(percent_encode("plain: text ~ 1"), "plain: text ~ 1");
  EXPECT_EQ(percent_encode("100%"), "100%25");
  EXPECT_EQ(percent_encode("a\nb\x7f"), "a%0Ab%7F");
  EXPECT_EQ(percent_encode("\xc3\xa9"), "%C3%A9");
  EXPECT_EQ(percent_encode(std::string(1, '\0')), "%00");
}

TEST(grpc_message, a_cut_never_splits_a_character) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("abcd", 3), "abc");
  EXPECT_EQ(cut_text("ab\xc3\xa9z", 3), "ab");
  EXPECT_EQ(cut_text("ab\xc3\xa9z", 4), "ab\xc3\xa9");
  EXPECT_EQ(cut_text("\xf0\x9f\x98\x80", 3), "");
}

TEST(grpc_content_type, the_bare_type_a_format_and_parameters_are_grpc) {
  EXPECT_TRUE(is_grpc_content_type("application/grpc"));
  EXPECT_TRUE(is_grpc_content_type("application/grpc+proto"));
  EXPECT_TRUE(is_grpc_content_type("application/grpc;charset=utf-8"));
  EXPECT_FALSE(is_grpc_content_type("application/grpc-web"));
  EXPECT_FALSE(is_grpc_content_type("application/json"));
  EXPECT_FALSE(is_grpc_content_type(""));
}

TEST(status_code, names_are_those_of_the_registry) {
  EXPECT_EQ(to_string(status_code::ok), "OK");
  EXPECT_EQ(to_string(status_code::resource_exhausted), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(to_string(status_code::unauthenticated), "UNAUTHENTICATED");
  EXPECT_EQ(to_string(static_cast<status_code>(99)), "UNKNOWN");
}

TEST(message_reader, a_message_cut_at_every_place_is_whole_again) {
  const auto bytes = framed("hello");
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    message_reader reader{100};
    std::string_view first{bytes.data(), cut};
    std::string_view second{bytes.data() + cut, bytes.size() - cut};
    const auto state = reader.feed(first);
    EXPECT_EQ(state, cut == bytes.size() ? message_reader::state::message : message_reader::state::need_more);
    if (cut < bytes.size()) {
      EXPECT_EQ(reader.inside_message(), cut > 0);
      EXPECT_EQ(reader.feed(second), message_reader::state::message);
    }
    EXPECT_EQ(reader.body(), "hello");
    EXPECT_FALSE(reader.inside_message());
  }
}

TEST(message_reader, stops_at_the_end_of_each_message) {
  const auto bytes = framed("one") + framed("") + framed("three");
  message_reader reader{100};
  std::string_view rest{bytes};
  for (const auto* want : {"one", "", "three"}) {
    ASSERT_EQ(reader.feed(rest), message_reader::state::message);
    EXPECT_EQ(reader.body(), want);
    reader.next();
  }
  EXPECT_TRUE(rest.empty());
}

TEST(message_reader, refuses_what_it_cannot_read) {
  const auto first_state = [](const std::string& bytes) {
    message_reader reader{10};
    std::string_view in{bytes};
    return reader.feed(in);
  };
  EXPECT_EQ(first_state(framed("x", 1)), message_reader::state::compressed);
  EXPECT_EQ(first_state(framed("x", 2)), message_reader::state::bad_flag);
  EXPECT_EQ(first_state(framed(std::string(11, 'x'))), message_reader::state::too_large);
  EXPECT_EQ(first_state(framed(std::string(10, 'x'))), message_reader::state::message);
  EXPECT_EQ(first_state(std::string{"\0\xff\xff\xff\xff", 5}), message_reader::state::too_large);
}

} // namespace
} // namespace rankwise::io::grpc
