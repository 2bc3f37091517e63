#include "wire/sglang/request_fields.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace rankwise::wire::sglang {

namespace {

using named_field = std::pair<std::string_view, request_field>;
using enum request_field;

constexpr std::array generate_needed{
    named_field{"rid", rid},
    named_field{"input_ids", input_ids},
    named_field{"sampling_params", sampling_params},
    named_field{"stream", stream},
    named_field{"bootstrap_host", bootstrap_host},
    named_field{"bootstrap_port", bootstrap_port},
    named_field{"bootstrap_room", bootstrap_room},
};

// Fields whose type does not take nil, with the default that 0.5.23 declares (or, for the required ones, what a plain
// generation has); read from `msgspec.structs.fields` of the installed package.
constexpr std::array generate_defaults{
    named_field{"return_logprob", false_value},
    named_field{"logprob_start_len", minus_one},
    named_field{"top_logprobs_num", zero},
    named_field{"return_sampling_mask", false_value},
    named_field{"return_flat_raw_top_logprobs", false_value},
    named_field{"return_hidden_states", false_value},
    named_field{"return_routed_experts", false_value},
    named_field{"routed_experts_start_len", zero},
    named_field{"return_indexer_topk", false_value},
    named_field{"require_reasoning", false_value},
    named_field{"no_logs", false_value},
    named_field{"return_bytes", false_value},
    named_field{"return_entropy", false_value},
    named_field{"pp_prefetch_ticketed", false_value},
    named_field{"sampling_logprobs_mode", selected},
};

constexpr std::array sampling_needed{
    named_field{"max_new_tokens", max_new_tokens},
    named_field{"stop", stop},
    named_field{"stop_token_ids", stop_token_ids},
    named_field{"temperature", temperature},
    named_field{"top_p", top_p},
    named_field{"top_k", top_k},
    named_field{"min_p", min_p},
    named_field{"frequency_penalty", frequency_penalty},
    named_field{"presence_penalty", presence_penalty},
    named_field{"repetition_penalty", repetition_penalty},
    named_field{"min_new_tokens", min_new_tokens},
    named_field{"json_schema", json_schema},
    named_field{"regex", regex},
    named_field{"ebnf", ebnf},
    named_field{"structural_tag", structural_tag},
    named_field{"ignore_eos", ignore_eos},
    named_field{"skip_special_tokens", skip_special_tokens},
    named_field{"spaces_between_special_tokens", spaces_between_special_tokens},
    named_field{"no_stop_trim", no_stop_trim},
    named_field{"stream_interval", stream_interval},
    named_field{"logit_bias", logit_bias},
    named_field{"sampling_seed", sampling_seed},
};

constexpr std::array sampling_defaults{
    named_field{"n", n},
    named_field{"stop_str_max_len", zero},
    named_field{"stop_regex_max_len", zero},
    named_field{"is_normalized", false_value},
    named_field{"ebnf_full_assistant", false_value},
};

request_field find(std::span<const named_field> fields, std::string_view name) noexcept {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == name; });
  return found == fields.end() ? nil : found->second;
}

wire_result<std::vector<std::uint8_t>> positions(const registration& r, std::string_view struct_name,
                                                 std::span<const named_field> needed,
                                                 std::span<const named_field> defaults) {
  const auto layout = r.positional_layouts.find(std::string(struct_name));
  if (layout == r.positional_layouts.end()) {
    return tl::unexpected(wire_error{wire_error_kind::missing_field, std::string(struct_name)});
  }
  const auto& names = layout->second;
  for (const auto& [name, field] : needed) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return tl::unexpected(
          wire_error{wire_error_kind::missing_field, std::string(struct_name) + "." + std::string(name)});
    }
  }
  std::vector<std::uint8_t> result;
  result.reserve(names.size());
  for (const std::string& name : names) {
    const request_field ours = find(needed, name);
    result.push_back(static_cast<std::uint8_t>(ours != nil ? ours : find(defaults, name)));
  }
  return result;
}

} // namespace

wire_result<std::vector<std::uint8_t>> generate_positions(const registration& r) {
  return positions(r, generate_struct, generate_needed, generate_defaults);
}

wire_result<std::vector<std::uint8_t>> sampling_positions(const registration& r) {
  return positions(r, sampling_struct, sampling_needed, sampling_defaults);
}

} // namespace rankwise::wire::sglang
