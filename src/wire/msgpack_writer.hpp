#pragma once

#include <cstddef>
#include <cstdint>
#include <msgpack/pack.hpp>
#include <string>
#include <string_view>

/// Writing msgpack into a std::string, each number in its shortest form as msgspec's encoder does.
namespace rankwise::wire {

struct string_stream {
  std::string& out;
  void write(const char* data, std::size_t size) { out.append(data, size); }
};

class msgpack_writer {
 public:
  explicit msgpack_writer(std::string& out) : stream_{out}, packer_(stream_) {}

  void array(std::size_t size) { packer_.pack_array(static_cast<std::uint32_t>(size)); }
  void map(std::size_t size) { packer_.pack_map(static_cast<std::uint32_t>(size)); }
  void text(std::string_view value) {
    packer_.pack_str(static_cast<std::uint32_t>(value.size()));
    packer_.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
  }
  void number(std::int64_t value) { packer_.pack_int64(value); }
  void unsigned_number(std::uint64_t value) { packer_.pack_uint64(value); }
  void real(double value) { packer_.pack_double(value); }
  void boolean(bool value) { value ? packer_.pack_true() : packer_.pack_false(); }
  void nil() { packer_.pack_nil(); }
  /// Bytes that are msgpack already.
  void raw(std::string_view bytes) { stream_.out.append(bytes); }
  /// `count` times the same one-byte value, e.g. nil or the empty array.
  void repeat(std::size_t count, char byte) { stream_.out.append(count, byte); }

  static constexpr char nil_byte = '\xc0';
  static constexpr char zero_byte = '\x00';
  static constexpr char empty_array_byte = '\x90';
  static constexpr char empty_string_byte = '\xa0';

 private:
  string_stream stream_;
  msgpack::packer<string_stream> packer_;
};

} // namespace rankwise::wire
