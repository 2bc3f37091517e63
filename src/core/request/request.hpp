#pragma once

#include "core/base/bootstrap_info.hpp"
#include "core/base/time.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// A generation request as a front hands it over: already validated, independent of the wire it came by.
namespace rankwise::core {

/// Values are those of SGLang's SamplingParams; the defaults are its semantic defaults, not proto3's zeros.
struct sampling_params {
  std::int32_t max_new_tokens = 128;
  std::int32_t min_new_tokens = 0;
  double temperature = 1.0;
  double top_p = 1.0;
  std::int32_t top_k = -1;
  double min_p = 0.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  std::string json_schema; ///< At most one of the four grammars is not empty.
  std::string regex;
  std::string ebnf;
  std::string structural_tag;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool no_stop_trim = false;
  std::optional<std::int32_t> stream_interval;
  std::map<std::string, double> logit_bias;
  std::optional<std::int64_t> sampling_seed;

  friend bool operator==(const sampling_params&, const sampling_params&) = default;
};

struct generate_request {
  std::string rid;                     ///< The client's own id: UTF-8, 1..rid_bytes_max bytes.
  std::vector<std::int32_t> input_ids; ///< Never empty.
  sampling_params sampling;
  std::uint32_t samples = 1;                      ///< n: how many independent samples; each is placed by itself.
  bool stream = true;                             ///< Also sent to the engine; a front may still gather.
  std::optional<std::int32_t> data_parallel_rank; ///< A pin to one rank of the pool that decodes.
  std::optional<bootstrap_info> bootstrap;        ///< Set when a gateway pairs the legs itself.
  std::optional<timestamp> deadline;              ///< The client's own; none = it waits as long as it lasts.
  /// Its class among those who wait, priority_min .. priority_max: a higher one goes first. Not told to the engine.
  std::int32_t priority = 0;
  std::optional<timestamp> first_token_by; ///< The client wants its first token by then; it goes on without.
  /// When the front took it, for measuring; the origin = not known. Not serialised, it means nothing elsewhere.
  timestamp received_at{};

  friend bool operator==(const generate_request&, const generate_request&) = default;
};

inline constexpr std::int32_t priority_min = -8;
inline constexpr std::int32_t priority_max = 8;

/// Longest rid that a front lets through, in bytes.
inline constexpr std::size_t rid_bytes_max = 256;

/// Requests travel between threads as shared, immutable values: a prompt may hold a million tokens.
using request_ptr = std::shared_ptr<const generate_request>;

} // namespace rankwise::core
