#pragma once

#include "core/request/stream_sink.hpp"
#include "wire/sglang/wire_error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Outputs from a rank: one frame, a positional array, tag first.
namespace rankwise::wire::sglang {

/// Columns 12-15 of a slim output. kv_total_tokens 0 on the wire means "no report" and decodes to an empty optional.
struct load_tail {
  std::uint32_t num_running = 0;
  std::uint32_t num_waiting = 0;
  std::uint64_t kv_used_tokens = 0;
  std::uint64_t kv_total_tokens = 0;
  friend bool operator==(const load_tail&, const load_tail&) = default;
};

struct output_item {
  std::string rid; ///< as the engine saw it (engine_rid); kept as text so that an unknown one can be named in a log
  std::uint32_t token_offset = 0; ///< into token_output::tokens
  std::uint32_t token_count = 0;
  core::finish_reason finish = core::finish_reason::none;
  std::string finish_message; ///< engine's own text of an abort
  std::int64_t matched_token = -1;
  std::string matched_string;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t cached_tokens = 0;
  std::int32_t finish_status = 0; ///< HTTP status of an abort; 0 = none
};

/// BatchTokenIDSlimOutput
struct token_output {
  std::vector<output_item> items;
  std::vector<std::int32_t> tokens;
  /// The identity of the rank that sent it; none when the frame ends before that column.
  std::optional<std::uint32_t> engine_index;
  std::optional<load_tail> load;
  bool load_malformed =
      false; ///< the tail held nonsense (wrong types, used > 2^63 ...): outputs are good, the report is dropped
};

/// BatchEmbeddingSlimOutput: read for its load and its rids only, until embeddings are served.
struct embedding_output {
  std::vector<std::string> rids;
  std::optional<std::uint32_t> engine_index; ///< as in token_output
  std::optional<load_tail> load;
};

/// ControlReplySlim
struct control_reply {
  std::int64_t call_id = 0; ///< the number that encode_control sent
  bool success = false;
  std::string message;
  std::optional<std::uint32_t> engine_index; ///< as in token_output
};

/// The raw frame ENGINE_CORE_DEAD
struct engine_dead {};

using engine_output = std::variant<token_output, embedding_output, control_reply, engine_dead>;

inline constexpr std::uint32_t batch_rids_max = 65'536;
inline constexpr std::uint32_t batch_tokens_max = 1'048'576;

/// Decodes a prefix and ignores what newer releases append; the tail may stop after column 10 or 15. Nothing is read
/// past the last column that we use, so a fault behind it goes unnoticed. A finish reason that this version does not
/// know ends the request as an abort whose message names it. Errors: any wire_error_kind but bad_status; `field` names
/// the column. Limits above: too_large.
[[nodiscard]] wire_result<engine_output> decode_output(std::string_view frame);

// -- the engine's side, byte for byte what the plugin sends
// ------------------------------------------------------------

/// As `BatchTokenIDSlimOutput.from_full` builds it: all 27 columns, none of them nil. No load = zeros, as when the
/// snapshot failed. `raw_load`, when not empty, is msgpack that takes the place of the four load columns: simulated
/// ranks that report nonsense use it.
[[nodiscard]] std::string encode_token_output(const token_output& batch, std::string_view raw_load = {});
/// As `send_terminal_abort` builds it: one rid, no token, columns 17-27 nil. `status` 0 = none.
[[nodiscard]] std::string encode_terminal_abort(std::string_view rid, std::string_view message, std::int32_t status,
                                                std::uint32_t engine_index, const std::optional<load_tail>& load);
[[nodiscard]] std::string encode_control_reply(const control_reply& reply);
inline constexpr std::string_view engine_core_dead_frame = "ENGINE_CORE_DEAD";

} // namespace rankwise::wire::sglang
