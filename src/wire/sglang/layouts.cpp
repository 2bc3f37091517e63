#include "wire/sglang/layouts.hpp"

#include <algorithm>

namespace rankwise::wire::sglang {

namespace {

void erase_field(std::vector<std::string>& fields, const std::string& name) {
  fields.erase(std::remove(fields.begin(), fields.end(), name), fields.end());
}

} // namespace

layouts sglang_0_5_23_layouts() {
  return {
      {"TokenizedGenerateReqInput",
       {"rid",
        "http_worker_ipc",
        "input_text",
        "input_ids",
        "input_embeds",
        "mm_inputs",
        "token_type_ids",
        "sampling_params",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "stream",
        "return_sampling_mask",
        "return_flat_raw_top_logprobs",
        "return_hidden_states",
        "return_routed_experts",
        "routed_experts_start_len",
        "return_indexer_topk",
        "session_id",
        "session_params",
        "lora_id",
        "custom_logit_processor",
        "positional_embed_overrides",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        "routing_key",
        "require_reasoning",
        "priority",
        "extra_key",
        "no_logs",
        "return_bytes",
        "return_entropy",
        "need_wait_for_mm_inputs",
        "num_items_assigned",
        "encoder_urls",
        "multi_item_delimiter_indices",
        "token_indices_to_pool",
        "time_stats",
        "cache_salt",
        "kv_hints",
        "pp_prefetch_ticketed",
        "sampling_logprobs_mode",
        "lora_name"}},
      {"TokenizedEmbeddingReqInput",
       {"rid", "http_worker_ipc", "input_text", "input_ids", "mm_inputs", "token_type_ids", "sampling_params",
        "lora_id", "positional_embed_overrides", "routed_dp_rank", "priority", "dimensions",
        "return_pooled_hidden_states", "multi_item_delimiter_indices", "token_indices_to_pool", "decision_layout",
        "time_stats", "lora_name"}},
      {"EncoderDispatchErrorReq", {"rid", "http_worker_ipc", "error_msg", "error_code"}},
      {"SamplingParams",
       {"max_new_tokens",
        "stop",
        "stop_token_ids",
        "stop_regex",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "min_new_tokens",
        "n",
        "beam_width",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "stream_interval",
        "logit_bias",
        "sampling_seed",
        "custom_params",
        "watermark",
        "stop_strs",
        "stop_regex_strs",
        "stop_str_max_len",
        "stop_regex_max_len",
        "is_normalized",
        "ebnf_full_assistant"}},
      {"MultimodalProcessorOutput",
       {"mm_items", "input_ids", "padded_input_ids", "im_token_id", "im_start_id", "im_end_id", "slice_start_id",
        "slice_end_id", "video_token_id", "audio_token_id", "audio_start_id", "audio_end_id", "mrope_positions",
        "mrope_position_delta", "vision_position_ids", "media_nums_per_sample", "visible_frame_counts",
        "token_type_ids"}},
      {"MultimodalDataItem",
       {"modality", "hash", "pad_value", "offsets", "format", "feature", "precomputed_embeddings",
        "keep_device_embedding", "model_specific_data", "identity", "pad_values"}},
  };
}

layouts sglang_0_5_21_layouts() {
  layouts older = sglang_0_5_23_layouts();
  erase_field(older["TokenizedGenerateReqInput"], "lora_name");
  erase_field(older["TokenizedEmbeddingReqInput"], "decision_layout");
  erase_field(older["TokenizedEmbeddingReqInput"], "lora_name");
  erase_field(older["SamplingParams"], "watermark");
  erase_field(older["MultimodalDataItem"], "identity");
  erase_field(older["MultimodalDataItem"], "pad_values");
  return older;
}

} // namespace rankwise::wire::sglang
