#include "wire/sglang/output_codec.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

/// Whatever a rank sends: decoding ends, and what it accepts can be encoded and decoded again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace sg = rankwise::wire::sglang;
  const auto decoded = sg::decode_output({reinterpret_cast<const char*>(data), size});
  if (!decoded) {
    return 0;
  }
  if (const auto* batch = std::get_if<sg::token_output>(&*decoded)) {
    for (const auto& item : batch->items) {
      if (std::uint64_t{item.token_offset} + item.token_count > batch->tokens.size()) {
        std::abort();
      }
    }
    const auto again = sg::decode_output(sg::encode_token_output(*batch));
    if (!again || std::get<sg::token_output>(*again).tokens != batch->tokens) {
      std::abort();
    }
  }
  return 0;
}
