#include "core/placement/block_hashes.hpp"

#define XXH_INLINE_ALL // nothing to link: the build for ThreadSanitizer links no library
#include <xxhash.h>

namespace rankwise::core {

void hash_blocks(std::span<const std::int32_t> tokens, std::uint32_t block_tokens, std::vector<std::uint64_t>& chain) {
  chain.clear();
  if (block_tokens == 0)
    return;
  std::uint64_t before = 0;
  for (std::size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
    before = XXH3_64bits_withSeed(tokens.data() + at, block_tokens * sizeof(std::int32_t), before);
    chain.push_back(before);
  }
}

} // namespace rankwise::core
