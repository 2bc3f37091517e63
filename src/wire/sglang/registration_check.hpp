#pragma once

#include "wire/sglang/handshake.hpp"

#include <cstdint>
#include <string>

/// Whether what a rank registers can be true: each value for itself, and the size of its engine beside those of the
/// other ranks of its pool. Knows no sockets and keeps nothing.
namespace rankwise::wire::sglang {

/// Most tokens that a registration may name, of a KV cache, a sequence or a step. Beyond it a value is taken for
/// nonsense: sums over all ranks of a node stay far from the end of 64 bits.
inline constexpr std::uint64_t registered_tokens_max = std::uint64_t{1} << 40;

/// What is wrong with the values of a registration of the rank with the identity `rank`, in a pool that takes
/// `ranks_max` ranks: "kv_cache_size_tokens 0: must be from 1 to 1099511627776". Empty when nothing is.
///
/// kv_cache_size_tokens, max_model_len (tokens) and max_num_seqs (requests) are refused when they are 0: placement
/// would guess, and the front would admit prompts of any length. max_num_batched_tokens 0 is taken: it is how an engine
/// without chunked prefill says so, and counts as not known wherever it is used (core::chunk_tokens_of).
/// data_parallel_size counts the ranks of the rank's engine, of which data_parallel_rank is one: it is below that size,
/// and at most the identity, which is the index of the engine and data_parallel_rank together. block_size and
/// num_gpu_blocks are not looked at, as nothing is computed by them.
[[nodiscard]] std::string fault_of(const registration& r, std::uint16_t rank, std::uint16_t ranks_max);

/// Where a rank says that it belongs: to an engine of `data_parallel_size` ranks, as its `data_parallel_rank`.
struct engine_place {
  std::uint16_t rank = 0; ///< Its number in the pool, which is its identity.
  std::uint32_t data_parallel_rank = 0;
  std::uint32_t data_parallel_size = 1;

  /// The number in the pool of the first rank of its engine.
  [[nodiscard]] std::int64_t first() const noexcept { return std::int64_t{rank} - data_parallel_rank; }
  /// The number in the pool behind the last rank of its engine.
  [[nodiscard]] std::int64_t end() const noexcept { return first() + data_parallel_size; }
};

/// How the place of a rank contradicts what a registered rank of its pool said: "rank 2 says data_parallel_size 5, rank
/// 0 says 3". Empty when both can be true: they are of one engine of one size, or of two engines that share no number.
[[nodiscard]] std::string contradiction(const engine_place& rank, const engine_place& registered);

} // namespace rankwise::wire::sglang
