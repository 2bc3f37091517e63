#pragma once

#include "wire/sglang/wire_error.hpp"

#include <cstddef>
#include <cstdint>
#include <msgpack/null_visitor.hpp>
#include <msgpack/parse.hpp>
#include <msgpack/unpack.hpp>
#include <optional>
#include <string>
#include <string_view>

/// Reading a msgpack frame without an object tree: what the visitors of the hot messages share.
namespace rankwise::wire {

/// Remembers the first error and the nesting. A visitor returns the result of `fail` or `stop` to end the parse.
class bounded_visitor : public msgpack::null_visitor {
 public:
  explicit bounded_visitor(std::size_t frame_bytes) : frame_bytes_(frame_bytes) {}

  void parse_error(std::size_t, std::size_t) { fail(sglang::wire_error_kind::not_msgpack, {}); }
  void insufficient_bytes(std::size_t, std::size_t) { fail(sglang::wire_error_kind::truncated, {}); }

  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  [[nodiscard]] const std::optional<sglang::wire_error>& error() const noexcept { return error_; }

 protected:
  bool fail(sglang::wire_error_kind kind, std::string_view field) {
    if (!error_) {
      error_ = sglang::wire_error{kind, std::string(field)};
    }
    return false;
  }
  /// Everything that we want has been read.
  bool stop() noexcept {
    stopped_ = true;
    return false;
  }
  /// An announced length is believed only as far as the frame can hold it: each element takes a byte at least.
  [[nodiscard]] bool can_hold(std::uint32_t elements) const noexcept { return elements <= frame_bytes_; }

  std::uint32_t depth_ = 0;

 private:
  std::size_t frame_bytes_;
  bool stopped_ = false;
  std::optional<sglang::wire_error> error_;
};

/// Errors: those of the visitor, truncated, not_msgpack, and trailing_bytes unless the visitor stopped early.
template <class Visitor>
[[nodiscard]] sglang::wire_result<void> parse_frame(std::string_view frame, Visitor& visitor) {
  std::size_t offset = 0;
  const bool complete = msgpack::parse(frame.data(), frame.size(), offset, visitor);
  if (visitor.error()) {
    return tl::unexpected(*visitor.error());
  }
  if (visitor.stopped()) {
    return {};
  }
  if (!complete) {
    return tl::unexpected(sglang::wire_error{sglang::wire_error_kind::not_msgpack, {}});
  }
  if (offset != frame.size()) {
    return tl::unexpected(sglang::wire_error{sglang::wire_error_kind::trailing_bytes, {}});
  }
  return {};
}

} // namespace rankwise::wire
