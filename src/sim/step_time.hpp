#pragma once

#include "core/base/time.hpp"

#include <cstdint>

/// How long one step of an engine takes.
namespace rankwise::sim {

/// step = base + per_request * decoding requests + per_kv_token * KV tokens of those + per_prefill_token * prefilled
/// tokens. Seconds. The defaults are a least-squares fit of the H100 measurements of Splitwise (Patel et al., ISCA
/// 2024; MIT), file perf_model.csv of github.com/Mutinifni/splitwise-sim: llama2-70b, h100-80gb, tensor parallel 8, 19
/// settings with prompts of 128 to 8,192 tokens and batches of 1 to 64. Its prompt times fit 11.6 ms + 0.105 ms a token
/// (9,560 tokens/s), its token times 29.9 ms + 0.215 ms a request + 0.158 us a KV token. smg's mock engine assumes
/// 8,000 prompt tokens a second.
struct step_time_constants {
  double base_s = 29.9e-3;
  double per_request_s = 0.215e-3;
  double per_kv_token_s = 0.158e-6;
  double per_prefill_token_s = 0.105e-3;

  [[nodiscard]] constexpr double seconds(std::uint64_t requests, std::uint64_t kv_tokens,
                                         std::uint64_t prefill_tokens) const noexcept {
    return base_s + per_request_s * static_cast<double>(requests) + per_kv_token_s * static_cast<double>(kv_tokens) +
           per_prefill_token_s * static_cast<double>(prefill_tokens);
  }
};

/// A step and what it had to do.
struct measured_step {
  double seconds = 0;
  std::uint64_t decoding_requests = 0;
  std::uint64_t kv_tokens = 0; ///< of those
  std::uint64_t prefill_tokens = 0;

  friend bool operator==(const measured_step&, const measured_step&) = default;
};

/// No step is shorter, so that constants of zero don't make a rank spin.
inline constexpr core::duration step_min = std::chrono::microseconds(10);

} // namespace rankwise::sim
