#include "wire/sglang/request_codec.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

/// A registration from anyone who reaches the endpoint: it is refused, or requests can be encoded for it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace sg = rankwise::wire::sglang;
  const auto r = sg::decode_registration({reinterpret_cast<const char*>(data), size});
  if (!r) {
    return 0;
  }
  const auto again = sg::decode_registration(sg::encode_registration(*r));
  if (again && again->positional_layouts != r->positional_layouts) {
    std::abort();
  }
  if (const auto layout = sg::request_layout::from_registration(*r)) {
    rankwise::core::generate_request request;
    request.rid = "r";
    request.input_ids = {1};
    if (layout->encode_add(request, "r~1.0", rankwise::core::bootstrap_info{"h", 1, 2}).empty()) {
      std::abort();
    }
  }
  return 0;
}
