#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rankwise::core {

/// Hash of each full block of `block_tokens` tokens, chained, so that equal hashes mean equal prompts up to there
/// (xxHash, 64 bits). The rest that fills no block is left out. Replaces what is in `chain`, whose memory is reused.
void hash_blocks(std::span<const std::int32_t> tokens, std::uint32_t block_tokens, std::vector<std::uint64_t>& chain);

[[nodiscard]] inline std::vector<std::uint64_t> hash_blocks(std::span<const std::int32_t> tokens,
                                                            std::uint32_t block_tokens) {
  std::vector<std::uint64_t> chain;
  hash_blocks(tokens, block_tokens, chain);
  return chain;
}

} // namespace rankwise::core
