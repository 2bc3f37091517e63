#include "io/front/request_validation.hpp"

#include "io/front/sglang_scheduler.pb.h"
#include "io/grpc/protocol.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

namespace rankwise::io::front {

namespace {

namespace pb = ::sglang::grpc::scheduler;

using fault = std::optional<grpc::status>;

constexpr auto int32_max = static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max());
constexpr std::size_t bootstrap_host_bytes_max = 255; // of a DNS name
constexpr std::size_t shown_bytes_max = 64;

std::string shown(std::string_view text) {
  return std::string{grpc::cut_text(text, shown_bytes_max)} + (text.size() > shown_bytes_max ? "..." : "");
}

std::string shown(float value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

grpc::status invalid(std::string_view field, const std::string& text) {
  return {grpc::status_code::invalid_argument, std::string{field} + ": " + text};
}

grpc::status unsupported(std::string_view field) {
  return {grpc::status_code::unimplemented, std::string{field} + ": not supported by this node"};
}

fault check_range(std::string_view field, float value, float low, bool low_included, float high) {
  const bool above = low_included ? value >= low : value > low;
  if (std::isfinite(value) && above && value <= high) {
    return std::nullopt;
  }
  const bool open_end = high == std::numeric_limits<float>::max();
  return invalid(field, shown(value) + (open_end ? " is not a finite number of at least " + shown(low)
                                                 : " is not in " + std::string{low_included ? "[" : "("} + shown(low) +
                                                       ", " + shown(high) + "]"));
}

fault check_rid(const std::string& rid) {
  if (rid.empty()) {
    return invalid("request_id", "is required");
  }
  if (rid.size() > core::rid_bytes_max) {
    return invalid("request_id", shown(rid) + " is " + std::to_string(rid.size()) + " bytes long, the limit is " +
                                     std::to_string(core::rid_bytes_max));
  }
  if (!is_utf8(rid)) {
    return invalid("request_id", "is not UTF-8");
  }
  return std::nullopt;
}

fault check_unsupported(const pb::GenerateRequest& in) {
  if (in.has_mm_inputs() && in.mm_inputs().ByteSizeLong() > 0) {
    return unsupported("mm_inputs");
  }
  if (in.return_logprob()) {
    return unsupported("return_logprob");
  }
  if (in.return_hidden_states()) {
    return unsupported("return_hidden_states");
  }
  if (!in.custom_logit_processor().empty()) {
    return unsupported("custom_logit_processor");
  }
  if (!in.input_embeds().empty()) {
    return unsupported("input_embeds");
  }
  if (!in.lora_id().empty()) {
    return unsupported("lora_id");
  }
  if (in.sampling_params().custom_params().fields_size() > 0) {
    return unsupported("sampling_params.custom_params");
  }
  // Without a grammar the flag changes nothing in the engine; with one it says where the grammar begins.
  if (in.require_reasoning() && in.sampling_params().constraint_case() != pb::SamplingParams::CONSTRAINT_NOT_SET) {
    return unsupported("require_reasoning together with a grammar");
  }
  return std::nullopt;
}

fault read_input(const pb::GenerateRequest& in, const core::node_info& node, std::vector<std::int32_t>& out) {
  const auto& ids = in.tokenized().input_ids();
  if (ids.empty()) {
    return invalid("tokenized.input_ids", "empty; a request needs at least one token");
  }
  const auto size = static_cast<std::size_t>(ids.size());
  if (node.max_model_len > 0 && size >= node.max_model_len) {
    return invalid("tokenized.input_ids", std::to_string(size) + " tokens leave no room in the context of " +
                                              std::to_string(node.max_model_len));
  }
  out.resize(size);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const auto id = ids[static_cast<int>(i)];
    bits |= id;
    out[i] = static_cast<std::int32_t>(id);
  }
  if (bits > int32_max) {
    const auto bad = std::find_if(ids.begin(), ids.end(), [](std::uint32_t id) { return id > int32_max; });
    return invalid("tokenized.input_ids[" + std::to_string(bad - ids.begin()) + "]",
                   std::to_string(*bad) + " is not a token id");
  }
  return std::nullopt;
}

fault read_counts(const pb::SamplingParams& in, const core::node_info& node, std::size_t prompt_tokens,
                  core::sampling_params& out) {
  // Without max_new_tokens the engine goes on to the end of the context: the Python servicer (smg_grpc_servicer 0.14.1,
  // sglang/servicer.py) and the Rust one (measured) both send "none", and the gateway leaves it out when its client
  // does. SGLang also cuts a larger count to that room (scheduler, "max_req_len"); done here as well so that a request
  // is not charged with tokens it can never have.
  const auto room = node.max_model_len > prompt_tokens + 1
                        ? static_cast<std::uint32_t>(node.max_model_len - prompt_tokens - 1)
                        : (node.max_model_len > 0 ? 1U : int32_max);
  if (in.has_max_new_tokens() && in.max_new_tokens() > int32_max) {
    return invalid("sampling_params.max_new_tokens", std::to_string(in.max_new_tokens()) + " is out of range");
  }
  const auto wanted = in.has_max_new_tokens() ? in.max_new_tokens() : room;
  if (in.min_new_tokens() > wanted) {
    return invalid("sampling_params.min_new_tokens", std::to_string(in.min_new_tokens()) + " is not in [0, " +
                                                         std::to_string(wanted) + "], the upper end is max_new_tokens");
  }
  out.max_new_tokens = static_cast<std::int32_t>(std::min(wanted, room));
  out.min_new_tokens = static_cast<std::int32_t>(std::min(in.min_new_tokens(), room));
  if (in.has_stream_interval()) {
    if (in.stream_interval() < 1) {
      return invalid("sampling_params.stream_interval", std::to_string(in.stream_interval()) + " is not at least 1");
    }
    out.stream_interval = in.stream_interval();
  }
  return std::nullopt;
}

// Ranges are those of SGLang 0.5.23's SamplingParams.verify(). proto3 cannot tell an unset number from 0; what an unset
// one means follows the Python servicer: top_p 0 is 1, top_k 0 is -1, repetition_penalty 0 is 1, temperature 0 is
// greedy.
fault read_numbers(const pb::SamplingParams& in, core::sampling_params& out) {
  const float top_p = in.top_p() == 0.0F ? 1.0F : in.top_p();
  const float repetition = in.repetition_penalty() == 0.0F ? 1.0F : in.repetition_penalty();
  const auto top_k = in.top_k() == 0 ? -1 : in.top_k();
  struct row {
    std::string_view field;
    float value;
    float low;
    bool low_included;
    float high;
  };
  const std::array<row, 6> rows{{
      {"sampling_params.temperature", in.temperature(), 0.0F, true, std::numeric_limits<float>::max()},
      {"sampling_params.top_p", top_p, 0.0F, false, 1.0F},
      {"sampling_params.min_p", in.min_p(), 0.0F, true, 1.0F},
      {"sampling_params.frequency_penalty", in.frequency_penalty(), -2.0F, true, 2.0F},
      {"sampling_params.presence_penalty", in.presence_penalty(), -2.0F, true, 2.0F},
      {"sampling_params.repetition_penalty", repetition, 0.0F, false, 2.0F},
  }};
  for (const auto& r : rows) {
    if (auto wrong = check_range(r.field, r.value, r.low, r.low_included, r.high)) {
      return wrong;
    }
  }
  if (top_k < -1) {
    return invalid("sampling_params.top_k", std::to_string(top_k) + " is neither -1 (all) nor at least 1");
  }
  out.temperature = static_cast<double>(in.temperature());
  out.top_p = static_cast<double>(top_p);
  out.top_k = top_k;
  out.min_p = static_cast<double>(in.min_p());
  out.frequency_penalty = static_cast<double>(in.frequency_penalty());
  out.presence_penalty = static_cast<double>(in.presence_penalty());
  out.repetition_penalty = static_cast<double>(repetition);
  return std::nullopt;
}

fault read_stops(const pb::SamplingParams& in, const front_options& limits, core::sampling_params& out) {
  if (static_cast<std::size_t>(in.stop_size()) > limits.stop_strings_max) {
    return invalid("sampling_params.stop", std::to_string(in.stop_size()) + " strings, the limit is " +
                                               std::to_string(limits.stop_strings_max));
  }
  for (int i = 0; i < in.stop_size(); ++i) {
    if (in.stop(i).empty()) {
      return invalid("sampling_params.stop[" + std::to_string(i) + "]", "empty; it would match at once");
    }
    out.stop.push_back(in.stop(i));
  }
  if (static_cast<std::size_t>(in.stop_token_ids_size()) > limits.stop_token_ids_max) {
    return invalid("sampling_params.stop_token_ids", std::to_string(in.stop_token_ids_size()) + " ids, the limit is " +
                                                         std::to_string(limits.stop_token_ids_max));
  }
  for (int i = 0; i < in.stop_token_ids_size(); ++i) {
    if (in.stop_token_ids(i) > int32_max) {
      return invalid("sampling_params.stop_token_ids[" + std::to_string(i) + "]",
                     std::to_string(in.stop_token_ids(i)) + " is not a token id");
    }
    out.stop_token_ids.push_back(in.stop_token_ids(i));
  }
  return std::nullopt;
}

fault read_logit_bias(const pb::SamplingParams& in, const front_options& limits, core::sampling_params& out) {
  if (static_cast<std::size_t>(in.logit_bias_size()) > limits.logit_bias_max) {
    return invalid("sampling_params.logit_bias", std::to_string(in.logit_bias_size()) + " entries, the limit is " +
                                                     std::to_string(limits.logit_bias_max));
  }
  for (const auto& [key, value] : in.logit_bias()) {
    std::int32_t token = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size() || token < 0) {
      return invalid("sampling_params.logit_bias", "key \"" + shown(key) + "\" is not a token id");
    }
    if (!std::isfinite(value)) {
      return invalid("sampling_params.logit_bias", "value " + shown(value) + " of key " + key + " is not finite");
    }
    out.logit_bias.emplace(key, static_cast<double>(value));
  }
  return std::nullopt;
}

fault read_sampling(const pb::GenerateRequest& in, const front_options& limits, const core::node_info& node,
                    core::generate_request& out) {
  if (!in.has_sampling_params()) {
    // Measured on the Rust servicer: SGLang's own defaults, so 128 tokens.
    out.sampling = {};
    return std::nullopt;
  }
  const auto& from = in.sampling_params();
  auto& to = out.sampling;
  if (auto wrong = read_numbers(from, to)) {
    return wrong;
  }
  if (auto wrong = read_counts(from, node, out.input_ids.size(), to)) {
    return wrong;
  }
  if (auto wrong = read_stops(from, limits, to)) {
    return wrong;
  }
  if (auto wrong = read_logit_bias(from, limits, to)) {
    return wrong;
  }
  if (from.n() > limits.samples_max) {
    return invalid("sampling_params.n",
                   std::to_string(from.n()) + " samples, the limit is " + std::to_string(limits.samples_max));
  }
  out.samples = std::max(from.n(), 1U);
  to.regex = from.regex();
  to.json_schema = from.json_schema();
  to.ebnf = from.ebnf_grammar();
  to.structural_tag = from.structural_tag();
  to.ignore_eos = from.ignore_eos();
  to.skip_special_tokens = from.skip_special_tokens();
  to.spaces_between_special_tokens = from.spaces_between_special_tokens();
  to.no_stop_trim = from.no_stop_trim();
  return std::nullopt;
}

fault read_placement(const pb::GenerateRequest& in, const core::node_info& node, core::generate_request& out) {
  if (in.has_data_parallel_rank()) {
    const auto rank = in.data_parallel_rank();
    if (rank < 0) {
      return invalid("data_parallel_rank", std::to_string(rank) + " is negative");
    }
    if (node.dp_size > 0 && static_cast<std::uint32_t>(rank) >= node.dp_size) {
      return invalid("data_parallel_rank",
                     std::to_string(rank) + " is not one of the " + std::to_string(node.dp_size) + " ranks");
    }
    out.data_parallel_rank = rank;
  }
  if (!in.has_disaggregated_params()) {
    if (node.disaggregation_mode == "prefill" || node.disaggregation_mode == "decode") {
      return invalid("disaggregated_params.bootstrap_room",
                     "missing; a " + node.disaggregation_mode + " worker needs the room where its partner is");
    }
    return std::nullopt;
  }
  const auto& from = in.disaggregated_params();
  if (from.bootstrap_room() < 0) {
    return invalid("disaggregated_params.bootstrap_room", std::to_string(from.bootstrap_room()) + " is negative");
  }
  if (from.bootstrap_port() < 0 || from.bootstrap_port() > 65535) {
    return invalid("disaggregated_params.bootstrap_port", std::to_string(from.bootstrap_port()) + " is not a port");
  }
  if (from.bootstrap_host().size() > bootstrap_host_bytes_max) {
    return invalid("disaggregated_params.bootstrap_host",
                   shown(from.bootstrap_host()) + " is too long for a host name");
  }
  if (in.sampling_params().n() > 1) {
    return invalid("sampling_params.n",
                   std::to_string(in.sampling_params().n()) + " samples cannot share the bootstrap_room of one");
  }
  out.bootstrap = core::bootstrap_info{from.bootstrap_host(), from.bootstrap_port(), from.bootstrap_room()};
  return std::nullopt;
}

} // namespace

bool is_utf8(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t i = 0;
  while (i < text.size()) {
    const unsigned first = byte(i);
    if (first < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || i + length > text.size()) {
      return false;
    }
    const unsigned second = byte(i + 1);
    const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) {
      return false;
    }
    for (std::size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

namespace {

tl::expected<std::int32_t, grpc::status> read_whole_number(std::string_view key, std::string_view text,
                                                           std::int32_t least, std::int32_t most) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    return tl::unexpected(grpc::status{grpc::status_code::invalid_argument,
                                       std::string{key} + ": \"" + shown(text) + "\" is not a whole number from " +
                                           std::to_string(least) + " to " + std::to_string(most)});
  }
  return value;
}

} // namespace

tl::expected<std::int32_t, grpc::status> read_priority(std::string_view text) {
  return read_whole_number(priority_key, text, core::priority_min, core::priority_max);
}

tl::expected<std::int32_t, grpc::status> read_first_token_ms(std::string_view text) {
  return read_whole_number(first_token_ms_key, text, 1, first_token_ms_max);
}

tl::expected<core::generate_request, grpc::status> request_validation::check(const pb::GenerateRequest& in,
                                                                             const core::node_info& node) const {
  core::generate_request out;
  if (auto wrong = check_rid(in.request_id())) {
    return tl::unexpected(std::move(*wrong));
  }
  if (auto wrong = check_unsupported(in)) {
    return tl::unexpected(std::move(*wrong));
  }
  if (auto wrong = read_input(in, node, out.input_ids)) {
    return tl::unexpected(std::move(*wrong));
  }
  if (auto wrong = read_sampling(in, options_, node, out)) {
    return tl::unexpected(std::move(*wrong));
  }
  if (auto wrong = read_placement(in, node, out)) {
    return tl::unexpected(std::move(*wrong));
  }
  out.rid = in.request_id();
  out.stream = in.stream();
  return out;
}

} // namespace rankwise::io::front
