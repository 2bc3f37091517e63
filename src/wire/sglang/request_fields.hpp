#pragma once

#include "wire/sglang/handshake.hpp"
#include "wire/sglang/wire_error.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

/// The fields of an ADD by name, shared by the encoder (node) and the decoder (simulated rank).
namespace rankwise::wire::sglang {

/// What stands at one position of a positional struct: a field that we use, or the value that a field which we don't
/// use must have because its type does not take nil.
enum class request_field : std::uint8_t {
  nil,
  false_value,
  zero,
  one,
  minus_one,
  selected, ///< sampling_logprobs_mode's default
  // TokenizedGenerateReqInput
  rid,
  input_ids,
  sampling_params,
  stream,
  bootstrap_host,
  bootstrap_port,
  bootstrap_room,
  // SamplingParams
  max_new_tokens,
  stop,
  stop_token_ids,
  temperature,
  top_p,
  top_k,
  min_p,
  frequency_penalty,
  presence_penalty,
  repetition_penalty,
  min_new_tokens,
  json_schema,
  regex,
  ebnf,
  structural_tag,
  ignore_eos,
  skip_special_tokens,
  spaces_between_special_tokens,
  no_stop_trim,
  stream_interval,
  logit_bias,
  sampling_seed,
  // read by the engine's side only
  n,
};

inline constexpr std::string_view generate_struct = "TokenizedGenerateReqInput";
inline constexpr std::string_view sampling_struct = "SamplingParams";

/// Position (the tag not counted) -> field, for both structs of a registered layout. Errors: missing_field.
[[nodiscard]] wire_result<std::vector<std::uint8_t>> generate_positions(const registration& r);
[[nodiscard]] wire_result<std::vector<std::uint8_t>> sampling_positions(const registration& r);

} // namespace rankwise::wire::sglang
