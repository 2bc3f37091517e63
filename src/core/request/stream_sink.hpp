#pragma once

#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"

#include <cstdint>
#include <vector>

/// The way back: from RequestManager to the front that holds the client's stream.
namespace rankwise::core {

enum class finish_reason : std::uint8_t { none = 0, stop = 1, length = 2, abort = 3 };

/// News of one sample of one stream. `token_offset`/`token_count` cut the new tokens out of the batch's `tokens`.
struct stream_event {
  stream_id stream = 0;
  std::uint32_t sample = 0; ///< 0 .. n-1
  std::uint32_t token_offset = 0;
  std::uint32_t token_count = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0; ///< Cumulative, these tokens included.
  std::uint32_t cached_tokens = 0;
  finish_reason finish = finish_reason::none; ///< Set = this sample is complete; the stream ends after its last sample.
  std::int64_t matched_token = -1;            ///< The stop token that ended it; -1 = none.
  std::uint32_t matched_string_index = no_index; ///< Set = the stop string that ended it.
  std::uint32_t outcome_index = no_index;        ///< Set = the whole stream ends here, with `outcomes[outcome_index]`.

  static constexpr std::uint32_t no_index = 0xffffffff;
};

/// What RequestManager learned from one engine batch (or one decision), for one front.
struct stream_batch {
  std::vector<stream_event> events;
  std::vector<std::int32_t> tokens;
  std::vector<outcome> outcomes;            ///< Of streams that end other than by all samples completing.
  std::vector<std::string> matched_strings; ///< Stop strings that events refer to by index.
};

/// Implemented by each front. Called from the handlers of RequestManagers and of the Supervisor: by several threads.
class stream_sink {
 public:
  virtual ~stream_sink() = default;

  /// Queue the batch and wake the front's thread. Never blocks, never throws. Events of one stream arrive in order;
  /// after an event with an outcome, or the finish of the last sample, no event for that stream follows.
  virtual void deliver(stream_batch&& batch) noexcept = 0;

  /// The RequestManager that was `owner` is gone, and knows none of its open streams any more: end each of them with
  /// `why`. Streams of other owners go on.
  virtual void fail_owner(owner_id owner, outcome why) noexcept = 0;
};

} // namespace rankwise::core
