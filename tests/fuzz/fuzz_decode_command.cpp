#include "wire/sglang/layouts.hpp"
#include "wire/sglang/request_codec.hpp"

#include <cstddef>
#include <cstdint>

/// The first byte is the request type, the rest its payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace sg = rankwise::wire::sglang;
  static const auto decoder = [] {
    sg::registration r;
    r.positional_layouts = sg::sglang_0_5_23_layouts();
    return *sg::command_decoder::from_registration(r);
  }();
  if (size == 0) {
    return 0;
  }
  const std::string_view payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  static_cast<void>(decoder.decode(data[0], payload));
  static_cast<void>(sg::peek_add_rid(payload));
  return 0;
}
