#pragma once

#include "io/grpc/protocol.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// Cuts the bytes of one stream's DATA frames into messages, however the frames are cut.
namespace rankwise::io::grpc {

class message_reader {
 public:
  enum class state : std::uint8_t {
    need_more,  ///< All input is consumed, no message is complete.
    message,    ///< `body()` holds a complete message; call `next()` before feeding more.
    compressed, ///< The flag byte says compressed, which this server does not offer.
    bad_flag,   ///< The flag byte is neither 0 nor 1.
    too_large,  ///< The announced length exceeds the limit.
  };

  explicit message_reader(std::size_t message_bytes_max) noexcept : message_bytes_max_(message_bytes_max) {}

  /// Consumes from the front of `in` up to the end of one message at most. After an error state the reader is of no
  /// use.
  [[nodiscard]] state feed(std::string_view& in);

  [[nodiscard]] std::string_view body() const noexcept { return body_; }
  [[nodiscard]] std::uint32_t announced_bytes() const noexcept { return announced_; }
  /// A message has begun and is not complete.
  [[nodiscard]] bool inside_message() const noexcept { return prefix_size_ > 0 && !complete_; }

  /// Drops the complete message and its memory.
  void next() noexcept;

 private:
  // A client can announce 256 MiB and send nothing, so memory is taken as bytes come, not as they are promised.
  static constexpr std::size_t reserve_bytes_max = 1 << 20;

  std::size_t message_bytes_max_;
  std::array<unsigned char, message_prefix_bytes> prefix_{};
  std::size_t prefix_size_ = 0;
  std::uint32_t announced_ = 0;
  bool complete_ = false;
  std::string body_;
};

} // namespace rankwise::io::grpc
