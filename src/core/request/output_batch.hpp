#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/request/stream_sink.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace rankwise::core {

/// One request's share of an engine batch, after the wire codec: rids are resolved to handles by the receiver.
struct output_item {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t token_offset = 0; ///< into output_batch::tokens
  std::uint32_t token_count = 0;
  finish_reason finish = finish_reason::none;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0; ///< cumulative, as the engine counts
  std::uint32_t cached_tokens = 0;
  std::int32_t finish_status = 0; ///< HTTP status of an abort; 0 = none
  std::int64_t matched_token = -1;
  std::uint32_t finish_text = stream_event::no_index;    ///< into output_batch::texts
  std::uint32_t matched_string = stream_event::no_index; ///< into output_batch::texts
};

/// What one frame of one rank said: one message to RequestManager, however many requests it speaks of.
struct output_batch {
  rank_id rank;
  rank_epoch epoch = 0;
  timestamp received_at{};
  std::vector<output_item> items;
  std::vector<std::int32_t> tokens;
  std::vector<std::string> texts;
};

} // namespace rankwise::core
