#pragma once

#include "wire/sglang/handshake.hpp"

#include <map>
#include <string>
#include <vector>

/// What ranks of two SGLang releases register as their positional layouts, for simulated ranks and tests; the node
/// itself goes by what a rank registers. Printed by `request_layouts()` of smg-grpc-servicer 0.14.1 with each release
/// installed.
namespace rankwise::wire::sglang {

using layouts = std::map<std::string, std::vector<std::string>>;

/// 49 fields of TokenizedGenerateReqInput; SamplingParams has `watermark` at 26.
[[nodiscard]] layouts sglang_0_5_23_layouts();

/// 48 fields of TokenizedGenerateReqInput; no `watermark`, so all of SamplingParams behind 25 stands one earlier.
[[nodiscard]] layouts sglang_0_5_21_layouts();

} // namespace rankwise::wire::sglang
