#pragma once

#include "io/grpc/server.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace rankwise::io::front {

/// What the front tells about the model. The ranks' registration carries its longest sequence and, where the engine
/// says it, its name (model_naming.hpp); all else is known from here only.
struct model_facts {
  std::string model_path;        ///< Empty = as the ranks registered it.
  std::string served_model_name; ///< Empty = as the ranks registered it, else model_path.
  std::string tokenizer_path;    ///< A folder that the gateway can read; empty = model_path.
  std::string model_type;
  std::vector<std::string> architectures;
  std::string weight_version = "default";
  std::string default_sampling_params_json;
  std::vector<std::int32_t> eos_token_ids;
  std::int32_t pad_token_id = 0;
  std::int32_t bos_token_id = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_context_length = 0; ///< 0 = as the ranks registered it.
};

struct front_options {
  grpc::server_options server;
  model_facts model;
  std::string load_balance_method = "headroom"; ///< Told in GetServerInfo.
  std::uint16_t loads_pool = 0; ///< The pool whose ranks are the worker's dp ranks in GetLoads: the one that decodes.

  std::uint32_t samples_max = 128;         ///< n of one request.
  std::uint32_t stop_strings_max = 32;     ///< As SGLang's MAX_STOP_COUNT.
  std::uint32_t stop_token_ids_max = 1024; ///< Of one request.
  std::uint32_t logit_bias_max = 4096;     ///< Entries of one request.
  /// Tokens of one stream that its client has not taken; beyond it the stream ends as slow_client.
  std::uint32_t tokens_unsent_max = 65'536;
  /// Tokens that wait between RequestManager and the I/O thread; beyond it every open stream ends, because one of them
  /// would miss tokens. Only an I/O thread that stands still gets there.
  std::size_t tokens_queued_max = 16'000'000;
};

} // namespace rankwise::io::front
