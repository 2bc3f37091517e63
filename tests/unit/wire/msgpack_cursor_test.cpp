#include "wire/msgpack_cursor.hpp"
#include "wire/msgpack_writer.hpp"

#include <functional>

#include <gtest/gtest.h>
#include <limits>
#include <msgpack.hpp>
#include <sstream>

namespace rankwise::wire {
namespace {

using kind = msgpack_cursor::kind;

std::string packed(const std::function<void(msgpack_writer&)>& write) {
  std::string bytes;
  msgpack_writer writer(bytes);
  write(writer);
  return bytes;
}

TEST(msgpack_cursor_test, integers_of_every_width_are_read_and_told_apart_by_sign) {
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{127}, std::int64_t{128}, std::int64_t{255}, std::int64_t{256},
        std::int64_t{65'535}, std::int64_t{65'536}, std::int64_t{4'294'967'295}, std::int64_t{4'294'967'296},
        std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}, std::int64_t{-32}, std::int64_t{-33},
        std::int64_t{-129}, std::int64_t{-32'769}, std::numeric_limits<std::int64_t>::min()}) {
    for (const std::string padding : {"", "\xc0\xc0\xc0\xc0"}) { // short frames take another path than long ones
      const std::string bytes = packed([&](auto& w) { w.number(value); });
      const std::string frame = bytes + padding;
      std::int64_t read_signed = 7;
      msgpack_cursor cursor(frame);
      EXPECT_TRUE(cursor.read_signed(read_signed)) << value;
      EXPECT_EQ(read_signed, value);
      EXPECT_EQ(cursor.left(), padding.size());
      std::uint64_t read = 7;
      msgpack_cursor unsigned_cursor(frame);
      EXPECT_EQ(unsigned_cursor.read_unsigned(read), value >= 0) << value;
      EXPECT_EQ(read, value >= 0 ? static_cast<std::uint64_t>(value) : 7U);
    }
    const std::string bytes = packed([&](auto& w) { w.number(value); });
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const std::string cut = bytes.substr(0, size);
      std::int64_t read = 0;
      msgpack_cursor cursor(cut);
      EXPECT_FALSE(cursor.read_signed(read));
      EXPECT_EQ(cursor.error(), kind::truncated);
    }
  }
  const std::string beyond = packed([](auto& w) { w.unsigned_number(std::numeric_limits<std::uint64_t>::max()); });
  std::int64_t read = 0;
  msgpack_cursor cursor(beyond);
  EXPECT_FALSE(cursor.read_signed(read));
  EXPECT_EQ(cursor.error(), kind::too_large);
}

TEST(msgpack_cursor_test, a_read_of_another_type_leaves_the_cursor_where_it_was) {
  const std::string frame = packed([](auto& w) {
    w.text("abc");
    w.boolean(true);
    w.nil();
  });
  msgpack_cursor cursor(frame);
  std::uint64_t number = 0;
  std::uint32_t size = 0;
  bool flag = false;
  std::string_view text;
  EXPECT_FALSE(cursor.read_unsigned(number));
  EXPECT_FALSE(cursor.read_array(size));
  EXPECT_FALSE(cursor.read_nil());
  EXPECT_FALSE(cursor.read_boolean(flag));
  EXPECT_EQ(cursor.error(), kind::wrong_type);
  ASSERT_TRUE(cursor.read_text(text));
  EXPECT_EQ(text, "abc");
  EXPECT_TRUE(cursor.read_boolean(flag) && flag);
  EXPECT_TRUE(cursor.read_nil());
  EXPECT_TRUE(cursor.at_end());
}

TEST(msgpack_cursor_test, texts_of_every_length_are_read) {
  for (const std::size_t length : {0U, 31U, 32U, 255U, 256U, 65'535U, 65'536U}) {
    const std::string text(length, 'x');
    const std::string frame = packed([&](auto& w) { w.text(text); });
    std::string_view read;
    msgpack_cursor cursor(frame);
    ASSERT_TRUE(cursor.read_text(read)) << length;
    EXPECT_EQ(read, text);
    msgpack_cursor cut(std::string_view(frame).substr(0, frame.size() - 1));
    EXPECT_FALSE(cut.read_text(read) && length > 0);
  }
}

TEST(msgpack_cursor_test, any_value_can_be_skipped) {
  std::stringstream stream;
  msgpack::packer<std::stringstream> packer(stream);
  packer.pack_array(14);
  packer.pack(std::vector<int>(20, 70'000));
  packer.pack(std::vector<int>(70'000, 1));
  packer.pack(std::map<int, std::vector<std::string>>{{1, {"a", std::string(300, 'b')}}, {2, {}}});
  packer.pack_map(0);
  packer.pack(1.5);
  packer.pack(1.5F);
  packer.pack(-70'000);
  packer.pack(std::string(70'000, 'c'));
  packer.pack_nil();
  packer.pack(false);
  packer.pack_bin(3);
  packer.pack_bin_body("abc", 3);
  packer.pack_ext(3, 5);
  packer.pack_ext_body("abc", 3);
  packer.pack_ext(16, 5);
  packer.pack_ext_body("0123456789abcdef", 16);
  packer.pack(std::uint64_t{1} << 63);
  const std::string frame = stream.str();
  msgpack_cursor cursor(frame);
  EXPECT_TRUE(cursor.skip());
  EXPECT_TRUE(cursor.at_end());
  for (std::size_t size = 0; size < frame.size(); size += size < 500 ? 1 : 997) {
    msgpack_cursor cut(std::string_view(frame).substr(0, size));
    EXPECT_FALSE(cut.skip()) << size;
    EXPECT_EQ(cut.error(), kind::truncated);
  }
}

TEST(msgpack_cursor_test, lies_about_lengths_end_at_once) {
  for (const std::string frame : {"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff",
                                  "\xc9\xff\xff\xff\xff\x01", "\xdb\xff\xff\xff\xff", "\xdc\xff\xff\xc0\xc0"}) {
    msgpack_cursor cursor(frame);
    EXPECT_FALSE(cursor.skip());
    EXPECT_EQ(cursor.error(), kind::truncated);
  }
  msgpack_cursor unknown("\x91\xc1");
  EXPECT_FALSE(unknown.skip());
  EXPECT_EQ(unknown.error(), kind::not_msgpack);
}

} // namespace
} // namespace rankwise::wire
