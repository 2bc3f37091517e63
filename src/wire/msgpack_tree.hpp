#pragma once

#include "wire/sglang/wire_error.hpp"

#include <msgpack/unpack.hpp>
#include <string_view>

/// Small messages that come once per rank are read as an object tree, with limits set before anything is allocated.
namespace rankwise::wire {

/// Errors: truncated, trailing_bytes, too_large, not_msgpack.
[[nodiscard]] sglang::wire_result<msgpack::object_handle> unpack_bounded(std::string_view frame);

/// The value under `key` of a map, or null.
[[nodiscard]] const msgpack::object* find_key(const msgpack::object& map, std::string_view key) noexcept;

} // namespace rankwise::wire
