#pragma once

#include "wire/sglang/wire_error.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// The dial-in handshake (HELLO, INIT, READY) and the registration, both directions.
namespace rankwise::wire::sglang {

enum class handshake_status : std::uint8_t { hello, ready };

/// rank -> front-end, msgpack map {status, local, headless, parallel_config_hash}.
struct handshake_message {
  handshake_status status = handshake_status::hello;
  bool local = true;
  bool headless = true;
};

[[nodiscard]] wire_result<handshake_message> decode_handshake(std::string_view frame);
[[nodiscard]] std::string encode_handshake(const handshake_message& message);

/// front-end -> rank: where this incarnation is to connect.
struct init_message {
  std::string input_endpoint;  ///< the rank's DEALER connects here
  std::string output_endpoint; ///< the rank's PUSH connects here
};

[[nodiscard]] std::string encode_init(const init_message& message);
[[nodiscard]] wire_result<init_message> decode_init(std::string_view frame);

/// Identity of rank i on every socket: 2 bytes, little-endian.
[[nodiscard]] std::string encode_identity(std::uint16_t rank);
[[nodiscard]] wire_result<std::uint16_t> decode_identity(std::string_view frame);

/// First frame on the input socket, a map read by key; unknown keys are ignored. Whether its values can be true is said
/// by registration_check.hpp.
struct registration {
  std::uint64_t max_model_len = 0;
  std::uint64_t num_gpu_blocks = 0;
  std::uint64_t block_size = 1;
  std::string engine_version;               ///< key vllm_version, e.g. "sglang-0.5.23"
  std::uint32_t data_parallel_size = 1;     ///< ranks of its engine
  std::uint32_t data_parallel_rank = 0;     ///< which of them it is
  std::uint32_t max_num_seqs = 0;           ///< most running requests
  std::uint64_t max_num_batched_tokens = 0; ///< prefill chunk in tokens; 0 = prefill is not chunked, or not known
  std::uint64_t kv_cache_size_tokens = 0;   ///< KV capacity
  std::string instance_id;
  /// struct name -> field names in declaration order, the tag not counted
  std::map<std::string, std::vector<std::string>> positional_layouts;
};

/// Errors: missing_field for a key that admission, placement or encoding cannot do without (max_model_len,
/// kv_cache_size_tokens, max_num_seqs, positional_layouts), wrong_type and too_large with the key.
[[nodiscard]] wire_result<registration> decode_registration(std::string_view frame);
[[nodiscard]] std::string encode_registration(const registration& r);

} // namespace rankwise::wire::sglang
