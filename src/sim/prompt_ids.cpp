#include "sim/prompt_ids.hpp"

#include <algorithm>

namespace rankwise::sim {

namespace {

/// SplitMix64 (Steele, Lea and Flood, 2014): a good hash of consecutive numbers.
std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

} // namespace

std::vector<std::int32_t> prompt_ids(const workload_request& request, std::uint32_t block_tokens, std::uint64_t seed,
                                     std::uint64_t number) {
  const std::uint32_t length = std::max<std::uint32_t>(request.input_tokens, 1);
  const std::uint64_t own = mix(mix(seed) ^ number);
  std::vector<std::int32_t> ids(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint32_t block = block_tokens == 0 ? 0 : i / block_tokens;
    const bool shared = block_tokens != 0 && block < request.prefix_blocks.size();
    const std::uint64_t base = shared ? mix(request.prefix_blocks[block]) : own;
    const std::uint64_t position = shared ? i % block_tokens : i;
    ids[i] = prompt_id_first + static_cast<std::int32_t>(mix(base + position) %
                                                         static_cast<std::uint64_t>(prompt_id_end - prompt_id_first));
  }
  return ids;
}

} // namespace rankwise::sim
