#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/handshake.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace sg = rankwise::wire::sglang;
  const std::string_view frame(reinterpret_cast<const char*>(data), size);
  static_cast<void>(sg::decode_handshake(frame));
  static_cast<void>(sg::decode_init(frame));
  static_cast<void>(sg::decode_identity(frame));
  static_cast<void>(sg::parse_engine_rid(frame));
  return 0;
}
