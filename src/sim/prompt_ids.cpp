#include "sim/prompt_ids.hpp"

#include "core/base/split_mix.hpp"

#include <algorithm>

namespace rankwise::sim {

std::vector<std::int32_t> prompt_ids(const workload_request& request, std::uint32_t block_tokens, std::uint64_t seed,
                                     std::uint64_t number) {
  const std::uint32_t length = std::max<std::uint32_t>(request.input_tokens, 1);
  const std::uint64_t own = core::split_mix(core::split_mix(seed) ^ number);
  std::vector<std::int32_t> ids(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint32_t block = block_tokens == 0 ? 0 : i / block_tokens;
    const bool shared = block_tokens != 0 && block < request.prefix_blocks.size();
    const std::uint64_t base = shared ? core::split_mix(request.prefix_blocks[block]) : own;
    const std::uint64_t position = shared ? i % block_tokens : i;
    ids[i] = prompt_id_first + static_cast<std::int32_t>(core::split_mix(base + position) %
                                                         static_cast<std::uint64_t>(prompt_id_end - prompt_id_first));
  }
  return ids;
}

} // namespace rankwise::sim
