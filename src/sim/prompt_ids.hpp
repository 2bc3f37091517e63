#pragma once

#include "sim/workload.hpp"

#include <cstdint>
#include <vector>

/// Token ids of a prompt, made up so that a prefix cache sees what the trace says.
namespace rankwise::sim {

/// Smallest vocabulary that the ids fit, and the first id used: ids below it are special tokens in many models.
inline constexpr std::int32_t prompt_id_first = 1000;
inline constexpr std::int32_t prompt_id_end = 30'000;

/// `number` is the request's place in the workload: prompts without prefix blocks differ by it and by the seed. Never
/// empty.
[[nodiscard]] std::vector<std::int32_t> prompt_ids(const workload_request& request, std::uint32_t block_tokens,
                                                   std::uint64_t seed, std::uint64_t number);

} // namespace rankwise::sim
