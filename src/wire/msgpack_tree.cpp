#include "wire/msgpack_tree.hpp"

#include <msgpack/object.hpp>
#include <new>

namespace rankwise::wire {

namespace {

// A layout holds some fifty names and a registration some twenty keys; the rest is room to grow.
constexpr std::size_t array_max = 1024;
constexpr std::size_t map_max = 256;
constexpr std::size_t text_max = 65'536;
constexpr std::size_t depth_max = 12;
constexpr std::size_t frame_bytes_max = 1'048'576;

tl::unexpected<sglang::wire_error> fail(sglang::wire_error_kind kind) {
  return tl::unexpected(sglang::wire_error{kind, {}});
}

} // namespace

sglang::wire_result<msgpack::object_handle> unpack_bounded(std::string_view frame) {
  using enum sglang::wire_error_kind;
  if (frame.size() > frame_bytes_max) {
    return fail(too_large);
  }
  const msgpack::unpack_limit limit(array_max, map_max, text_max, text_max, text_max, depth_max);
  std::size_t offset = 0;
  try {
    auto handle = msgpack::unpack(frame.data(), frame.size(), offset, nullptr, nullptr, limit);
    if (offset != frame.size()) {
      return fail(trailing_bytes);
    }
    return handle;
  } catch (const msgpack::insufficient_bytes&) {
    return fail(truncated);
  } catch (const msgpack::size_overflow&) {
    return fail(too_large);
  } catch (const msgpack::unpack_error&) {
    return fail(not_msgpack);
  } catch (const std::bad_alloc&) {
    return fail(too_large);
  }
}

const msgpack::object* find_key(const msgpack::object& map, std::string_view key) noexcept {
  if (map.type != msgpack::type::MAP) {
    return nullptr;
  }
  const auto& entries = map.via.map;
  for (std::uint32_t i = 0; i < entries.size; ++i) {
    const msgpack::object& name = entries.ptr[i].key;
    if (name.type == msgpack::type::STR && std::string_view(name.via.str.ptr, name.via.str.size) == key) {
      return &entries.ptr[i].val;
    }
  }
  return nullptr;
}

} // namespace rankwise::wire
