#pragma once

#include "wire/sglang/wire_error.hpp"

#include <cstdint>
#include <string_view>

/// Reading msgpack value by value, for the one message that comes with every token: msgpack-cxx's push parser spends
/// some 14 ns on a value, this some 2 (tests/perf/wire_benchmark.cpp). Nothing is allocated and nothing outside the
/// frame is read.
namespace rankwise::wire {

class msgpack_cursor {
 public:
  using kind = sglang::wire_error_kind;

  explicit msgpack_cursor(std::string_view frame)
      : at_(reinterpret_cast<const std::uint8_t*>(frame.data())), end_(at_ + frame.size()) {}

  [[nodiscard]] bool at_end() const noexcept { return at_ == end_; }
  [[nodiscard]] std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  /// Why the last read returned false.
  [[nodiscard]] kind error() const noexcept { return error_; }

  // Each reads one value of its type and steps over it. False: it is of another type (wrong_type, and the cursor
  // stays), or the frame ends inside it (truncated), or it begins with the one byte that no value begins with
  // (not_msgpack).

  /// An array's header; its elements come next. An array of more elements than bytes are left is truncated.
  [[nodiscard]] bool read_array(std::uint32_t& size) noexcept {
    std::uint32_t announced = 0;
    if (at_ != end_ && (*at_ & 0xf0) == 0x90) {
      announced = *at_ & 0x0f;
      ++at_;
    } else if (!read_long_header(0xdc, announced)) {
      return false;
    }
    size = announced;
    return announced <= left() || fail(kind::truncated);
  }

  [[nodiscard]] bool read_text(std::string_view& text) noexcept {
    const std::uint8_t* const start = at_;
    std::uint32_t size = 0;
    if (at_ != end_ && (*at_ & 0xe0) == 0xa0) {
      size = *at_ & 0x1f;
      ++at_;
    } else if (at_ != end_ && *at_ == 0xd9) {
      if (left() < 2) {
        return fail(kind::truncated);
      }
      size = at_[1];
      at_ += 2;
    } else if (!read_long_header(0xda, size)) {
      return false;
    }
    if (size > left()) {
      at_ = start;
      return fail(kind::truncated);
    }
    text = {reinterpret_cast<const char*>(at_), size};
    at_ += size;
    return true;
  }

  [[nodiscard]] bool read_nil() noexcept {
    if (at_ == end_ || *at_ != 0xc0) {
      return other_type();
    }
    ++at_;
    return true;
  }

  [[nodiscard]] bool read_boolean(bool& value) noexcept {
    if (at_ == end_ || (*at_ & 0xfe) != 0xc2) {
      return other_type();
    }
    value = *at_ == 0xc3;
    ++at_;
    return true;
  }

  /// A number from 0; a negative one is wrong_type.
  [[nodiscard]] bool read_unsigned(std::uint64_t& value) noexcept {
    if (at_ != end_ && *at_ < 0x80) {
      value = *at_++;
      return true;
    }
    if (left() >= 5) { // the widths that token ids and counts have
      switch (*at_) {
      case 0xcc:
        value = at_[1];
        at_ += 2;
        return true;
      case 0xcd:
        value = big_endian<std::uint16_t>(at_ + 1);
        at_ += 3;
        return true;
      case 0xce:
        value = big_endian<std::uint32_t>(at_ + 1);
        at_ += 5;
        return true;
      default:
        break;
      }
    }
    return read_wide_unsigned(value);
  }

  /// Any integer up to 2^63-1; a larger one is too_large.
  [[nodiscard]] bool read_signed(std::int64_t& value) noexcept;

  /// A whole value, whatever it is, in time linear in its bytes and without recursion.
  [[nodiscard]] bool skip() noexcept;

 private:
  bool fail(kind why) noexcept {
    error_ = why;
    return false;
  }
  bool other_type() noexcept {
    return fail(at_ == end_ ? kind::truncated : *at_ == 0xc1 ? kind::not_msgpack : kind::wrong_type);
  }

  template <class Integer>
  [[nodiscard]] Integer big_endian(const std::uint8_t* from) const noexcept {
    Integer value = 0;
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
      value = static_cast<Integer>((static_cast<std::uint64_t>(value) << 8) | from[i]);
    }
    return value;
  }

  /// A length of 16 bits after the byte `first`, or of 32 after `first` + 1.
  bool read_long_header(std::uint8_t first, std::uint32_t& size) noexcept {
    if (at_ == end_ || (*at_ != first && *at_ != first + 1)) {
      return other_type();
    }
    const bool is_short = *at_ == first;
    const std::size_t bytes = is_short ? 3 : 5;
    if (left() < bytes) {
      return fail(kind::truncated);
    }
    size = is_short ? big_endian<std::uint16_t>(at_ + 1) : big_endian<std::uint32_t>(at_ + 1);
    at_ += bytes;
    return true;
  }

  bool read_wide_unsigned(std::uint64_t& value) noexcept;

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  kind error_ = kind::truncated;
};

} // namespace rankwise::wire
