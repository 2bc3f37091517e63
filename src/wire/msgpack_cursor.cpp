#include "wire/msgpack_cursor.hpp"

#include <limits>

namespace rankwise::wire {

bool msgpack_cursor::read_wide_unsigned(std::uint64_t& value) noexcept {
  if (at_ == end_ || *at_ < 0xcc || *at_ > 0xd3) {
    return other_type();
  }
  // cc-cf: unsigned of 1, 2, 4, 8 bytes; d0-d3: signed of the same widths
  const bool is_signed = *at_ >= 0xd0;
  const std::size_t bytes = std::size_t{1} << ((*at_ - 0xcc) & 3);
  if (left() < 1 + bytes) {
    return fail(kind::truncated);
  }
  if (is_signed && (at_[1] & 0x80) != 0) {
    return fail(kind::wrong_type);
  }
  std::uint64_t read = 0;
  for (std::size_t i = 1; i <= bytes; ++i) {
    read = (read << 8) | at_[i];
  }
  value = read;
  at_ += 1 + bytes;
  return true;
}

bool msgpack_cursor::read_signed(std::int64_t& value) noexcept {
  if (at_ != end_ && *at_ >= 0xe0) { // -32 .. -1 in one byte
    value = static_cast<std::int8_t>(*at_++);
    return true;
  }
  if (at_ != end_ && *at_ >= 0xd0 && *at_ <= 0xd3) {
    const std::size_t bytes = std::size_t{1} << (*at_ - 0xd0);
    if (left() < 1 + bytes) {
      return fail(kind::truncated);
    }
    std::uint64_t read = (at_[1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = 1; i <= bytes; ++i) {
      read = (read << 8) | at_[i];
    }
    value = static_cast<std::int64_t>(read);
    at_ += 1 + bytes;
    return true;
  }
  const std::uint8_t* const start = at_;
  std::uint64_t read = 0;
  if (!read_unsigned(read)) {
    return false;
  }
  if (read > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    at_ = start;
    return fail(kind::too_large);
  }
  value = static_cast<std::int64_t>(read);
  return true;
}

bool msgpack_cursor::skip() noexcept {
  // Values still to be stepped over; never more than the bytes that are left, or the loop ends.
  for (std::uint64_t values = 1; values > 0; --values) {
    if (at_ == end_) {
      return fail(kind::truncated);
    }
    const std::uint8_t head = *at_;
    std::uint64_t body = 0;       // bytes behind the head
    std::size_t length_bytes = 0; // of a length that stands behind the head
    std::uint64_t per_length = 1; // values of one unit of that length: a map has two
    bool counts_values = false;
    if (head < 0x80 || head >= 0xe0 || head == 0xc0 || head == 0xc2 || head == 0xc3) {
      body = 0;
    } else if (head < 0x90) {
      values += 2ULL * (head & 0x0f);
    } else if (head < 0xa0) {
      values += head & 0x0f;
    } else if (head < 0xc0) {
      body = head & 0x1f;
    } else {
      switch (head) {
      case 0xc4: // bin 8, 16, 32
      case 0xc5:
      case 0xc6:
        length_bytes = std::size_t{1} << (head - 0xc4);
        break;
      case 0xc7: // ext 8, 16, 32: one byte of type more
      case 0xc8:
      case 0xc9:
        length_bytes = std::size_t{1} << (head - 0xc7);
        body = 1;
        break;
      case 0xca:
        body = 4;
        break;
      case 0xcb:
        body = 8;
        break;
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        body = 1ULL << (head - 0xcc);
        break;
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3:
        body = 1ULL << (head - 0xd0);
        break;
      case 0xd4: // fixext 1, 2, 4, 8, 16
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        body = 1 + (1ULL << (head - 0xd4));
        break;
      case 0xd9: // str 8, 16, 32
      case 0xda:
      case 0xdb:
        length_bytes = std::size_t{1} << (head - 0xd9);
        break;
      case 0xdc: // array 16, 32
      case 0xdd:
        length_bytes = std::size_t{2} << (head - 0xdc);
        counts_values = true;
        break;
      case 0xde: // map 16, 32
      case 0xdf:
        length_bytes = std::size_t{2} << (head - 0xde);
        counts_values = true;
        per_length = 2;
        break;
      default:
        return fail(kind::not_msgpack);
      }
    }
    ++at_;
    if (length_bytes > left()) {
      return fail(kind::truncated);
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < length_bytes; ++i) {
      length = (length << 8) | *at_++;
    }
    if (counts_values) {
      values += length * per_length;
    } else {
      body += length;
    }
    // Each value yet to come takes a byte at least: a lie about a length ends here.
    if (body > left() || values - 1 > left() - body) {
      return fail(kind::truncated);
    }
    at_ += body;
  }
  return true;
}

} // namespace rankwise::wire
