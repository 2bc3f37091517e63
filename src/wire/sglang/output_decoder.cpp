#include "wire/msgpack_visitor.hpp"
#include "wire/sglang/output_codec.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

namespace rankwise::wire::sglang {

namespace {

/// What a column means to us.
enum class column : std::uint8_t {
  tag,
  skip,
  rids,
  output_ids,
  finished_reasons,
  finished_messages,
  finished_matched,
  prompt_tokens,
  completion_tokens,
  cached_tokens,
  finished_status,
  engine_index,
  num_running,
  num_waiting,
  kv_used_tokens,
  kv_total_tokens,
  call_id,
  success,
  message,
};

std::string_view name_of(column c) noexcept {
  constexpr std::array<std::string_view, 19> names{"tag",
                                                   "",
                                                   "rids",
                                                   "output_ids",
                                                   "finished_reasons",
                                                   "finished_messages",
                                                   "finished_matched",
                                                   "prompt_tokens",
                                                   "completion_tokens",
                                                   "cached_tokens",
                                                   "finished_status",
                                                   "engine_index",
                                                   "num_running",
                                                   "num_waiting",
                                                   "kv_used_tokens",
                                                   "kv_total_tokens",
                                                   "call_id",
                                                   "success",
                                                   "message"};
  return names[static_cast<std::size_t>(c)];
}

using enum column;

// Positions of smg-grpc-servicer 0.14.1; new columns are appended at the end only (the plugin's own promise).
constexpr std::array token_columns{tag,
                                   rids,
                                   output_ids,
                                   finished_reasons,
                                   finished_messages,
                                   finished_matched,
                                   prompt_tokens,
                                   completion_tokens,
                                   cached_tokens,
                                   skip, // output_token_logprobs_val
                                   skip, // output_token_logprobs_idx
                                   engine_index,
                                   num_running,
                                   num_waiting,
                                   kv_used_tokens,
                                   kv_total_tokens,
                                   finished_status};
constexpr std::array embedding_columns{tag,         rids,           skip,           skip,         skip,
                                       skip,        skip,           skip,           engine_index, num_running,
                                       num_waiting, kv_used_tokens, kv_total_tokens};
constexpr std::array control_columns{tag, call_id, success, message, engine_index};

constexpr std::size_t token_columns_min = 11;
constexpr std::size_t embedding_columns_min = 8;
constexpr std::size_t control_columns_min = 3;

constexpr bool is_load(column c) noexcept {
  return c >= num_running && c <= kv_total_tokens;
}

class output_visitor : public bounded_visitor {
 public:
  using bounded_visitor::bounded_visitor;

  bool visit_nil() {
    switch (depth_) {
    case 1:
      return nil_column();
    case 2:
      return nil_row();
    default:
      return other_value();
    }
  }

  bool visit_boolean(bool value) {
    if (depth_ == 1 && column_ == success) {
      control_.success = value;
      return next_column();
    }
    return other_value();
  }

  bool visit_positive_integer(std::uint64_t value) {
    if (depth_ == 3 && column_ == output_ids) {
      return token(value);
    }
    if (depth_ == 2) {
      return number_row(value);
    }
    if (depth_ == 1) {
      return number_column(value);
    }
    return other_value();
  }

  bool visit_negative_integer(std::int64_t value) {
    if (depth_ == 1 && column_ == call_id) {
      control_.call_id = value;
      return next_column();
    }
    if (depth_ == 2 && column_ == finished_matched) {
      tokens_.items[row_++].matched_token = value;
      return true;
    }
    return other_value();
  }

  bool visit_float32(float) { return other_value(); }
  bool visit_float64(double) { return other_value(); }
  bool visit_bin(const char*, std::uint32_t) { return other_value(); }
  bool visit_ext(const char*, std::uint32_t) { return other_value(); }

  bool visit_str(const char* data, std::uint32_t size) {
    const std::string_view text(data, size);
    if (depth_ == 2) {
      return text_row(text);
    }
    if (depth_ == 1 && column_ == tag) {
      return choose(text);
    }
    if (depth_ == 1 && column_ == message) {
      control_.message = text;
      return next_column();
    }
    return other_value();
  }

  bool start_array(std::uint32_t size) {
    if (!can_hold(size)) {
      return fail(wire_error_kind::truncated, name_of(column_));
    }
    switch (depth_++) {
    case 0:
      columns_announced_ = size;
      return size > 0 || fail(wire_error_kind::unknown_tag, {});
    case 1:
      return start_column(size);
    case 2:
      return start_row(size);
    default:
      return column_ == output_ids ? fail(wire_error_kind::wrong_type, name_of(column_)) : nested();
    }
  }

  bool end_array() {
    --depth_;
    if (depth_ == 2) {
      if (column_ == output_ids) {
        output_item& item = tokens_.items[row_++];
        item.token_count = static_cast<std::uint32_t>(tokens_.tokens.size()) - item.token_offset;
      }
      return true;
    }
    return depth_ != 1 || next_column();
  }

  bool start_map(std::uint32_t size) {
    if (!can_hold(size)) {
      return fail(wire_error_kind::truncated, name_of(column_));
    }
    if (depth_ == 0) {
      return fail(wire_error_kind::not_an_array, {});
    }
    if (depth_ == 1 && is_load(column_)) {
      tokens_.load_malformed = true;
    } else if (column_ != skip && !is_load(column_)) {
      return fail(wire_error_kind::wrong_type, name_of(column_));
    }
    ++depth_;
    return nested();
  }

  bool end_map() {
    --depth_;
    return depth_ != 1 || next_column();
  }

  wire_result<engine_output> take() {
    if (columns_read_ < columns_min_) {
      return tl::unexpected(wire_error{wire_error_kind::missing_field, std::string(name_of(column_))});
    }
    const bool load_complete = columns_read_ > load_last_column_ && !tokens_.load_malformed;
    const auto load = load_complete && load_.kv_total_tokens > 0 ? std::optional(load_) : std::nullopt;
    switch (kind_) {
    case kind::tokens:
      tokens_.engine_index = engine_index_;
      tokens_.load = load;
      return engine_output(std::move(tokens_));
    case kind::embeddings:
      embeddings_.engine_index = engine_index_;
      embeddings_.load = load;
      return engine_output(std::move(embeddings_));
    case kind::control:
      control_.engine_index = engine_index_;
      return engine_output(std::move(control_));
    }
    return tl::unexpected(wire_error{wire_error_kind::unknown_tag, {}});
  }

 private:
  enum class kind : std::uint8_t { tokens, embeddings, control };

  bool choose(std::string_view name) {
    if (name == "BatchTokenIDSlimOutput") {
      kind_ = kind::tokens;
      columns_ = token_columns;
      columns_min_ = token_columns_min;
      load_last_column_ = 15;
    } else if (name == "BatchEmbeddingSlimOutput") {
      kind_ = kind::embeddings;
      columns_ = embedding_columns;
      columns_min_ = embedding_columns_min;
      load_last_column_ = 12;
    } else if (name == "ControlReplySlim") {
      kind_ = kind::control;
      columns_ = control_columns;
      columns_min_ = control_columns_min;
    } else {
      return fail(wire_error_kind::unknown_tag, name.substr(0, 64));
    }
    return next_column();
  }

  bool next_column() {
    ++columns_read_;
    row_ = 0;
    if (columns_read_ < columns_.size()) {
      column_ = columns_[columns_read_];
      return true;
    }
    column_ = skip;
    return columns_read_ >= columns_announced_ || stop();
  }

  /// A value that fits nowhere: fine where we skip, a broken report in the load tail, an error in any other column.
  bool other_value() {
    if (depth_ == 0) {
      return fail(wire_error_kind::not_an_array, {});
    }
    if (depth_ == 1) {
      if (is_load(column_)) {
        tokens_.load_malformed = true;
        return next_column();
      }
      if (column_ == tag) {
        return fail(wire_error_kind::unknown_tag, {});
      }
      return column_ == skip ? next_column() : fail(wire_error_kind::wrong_type, name_of(column_));
    }
    return column_ == skip || is_load(column_) || fail(wire_error_kind::wrong_type, name_of(column_));
  }

  bool nested() { return depth_ <= output_depth_max || fail(wire_error_kind::too_large, name_of(column_)); }

  bool start_column(std::uint32_t size) {
    switch (column_) {
    case rids:
      if (size > batch_rids_max) {
        return fail(wire_error_kind::too_large, name_of(column_));
      }
      kind_ == kind::tokens ? tokens_.items.reserve(size) : embeddings_.rids.reserve(size);
      return true;
    case output_ids:
      tokens_.tokens.reserve(tokens_.items.size());
      [[fallthrough]];
    case finished_reasons:
    case finished_messages:
    case finished_matched:
    case prompt_tokens:
    case completion_tokens:
    case cached_tokens:
    case finished_status:
      return size == tokens_.items.size() || fail(wire_error_kind::column_length, name_of(column_));
    case skip:
      return true;
    default:
      if (is_load(column_)) {
        tokens_.load_malformed = true;
        return true;
      }
      return fail(column_ == tag ? wire_error_kind::unknown_tag : wire_error_kind::wrong_type, name_of(column_));
    }
  }

  bool start_row(std::uint32_t size) {
    if (column_ != output_ids) {
      return column_ == skip || is_load(column_) || fail(wire_error_kind::wrong_type, name_of(column_));
    }
    if (tokens_.tokens.size() + size > batch_tokens_max) {
      return fail(wire_error_kind::too_large, name_of(column_));
    }
    tokens_.items[row_].token_offset = static_cast<std::uint32_t>(tokens_.tokens.size());
    return true;
  }

  bool token(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      return fail(wire_error_kind::too_large, name_of(column_));
    }
    tokens_.tokens.push_back(static_cast<std::int32_t>(value));
    return true;
  }

  bool nil_column() {
    if (column_ == message || column_ == finished_status) {
      return next_column();
    }
    return other_value();
  }

  bool nil_row() {
    if (column_ == finished_messages || column_ == finished_matched || column_ == finished_status) {
      ++row_;
      return true;
    }
    return other_value();
  }

  bool count(std::uint64_t value, std::uint32_t& into) {
    if (value > std::numeric_limits<std::uint32_t>::max()) {
      return fail(wire_error_kind::too_large, name_of(column_));
    }
    into = static_cast<std::uint32_t>(value);
    return true;
  }

  bool number_row(std::uint64_t value) {
    switch (column_) {
    case prompt_tokens:
      return count(value, tokens_.items[row_++].prompt_tokens);
    case completion_tokens:
      return count(value, tokens_.items[row_++].completion_tokens);
    case cached_tokens:
      return count(value, tokens_.items[row_++].cached_tokens);
    case finished_matched:
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail(wire_error_kind::too_large, name_of(column_));
      }
      tokens_.items[row_++].matched_token = static_cast<std::int64_t>(value);
      return true;
    case finished_status:
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
        return fail(wire_error_kind::too_large, name_of(column_));
      }
      tokens_.items[row_++].finish_status = static_cast<std::int32_t>(value);
      return true;
    default:
      return other_value();
    }
  }

  bool number_column(std::uint64_t value) {
    switch (column_) {
    case engine_index:
      return count(value, engine_index_) && next_column();
    case num_running:
      return load_count(value, load_.num_running);
    case num_waiting:
      return load_count(value, load_.num_waiting);
    case kv_used_tokens:
      return load_tokens(value, load_.kv_used_tokens);
    case kv_total_tokens:
      return load_tokens(value, load_.kv_total_tokens);
    case call_id:
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail(wire_error_kind::too_large, name_of(column_));
      }
      control_.call_id = static_cast<std::int64_t>(value);
      return next_column();
    default:
      return other_value();
    }
  }

  bool load_count(std::uint64_t value, std::uint32_t& into) {
    if (value > std::numeric_limits<std::uint32_t>::max()) {
      tokens_.load_malformed = true;
    } else {
      into = static_cast<std::uint32_t>(value);
    }
    return next_column();
  }

  bool load_tokens(std::uint64_t value, std::uint64_t& into) {
    // The engine counts in signed 64 bits: more is no count of tokens.
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      tokens_.load_malformed = true;
    } else {
      into = value;
    }
    return next_column();
  }

  bool text_row(std::string_view text) {
    switch (column_) {
    case rids:
      if (kind_ == kind::tokens) {
        tokens_.items.emplace_back().rid = text;
      } else {
        embeddings_.rids.emplace_back(text);
      }
      return true;
    case finished_reasons:
      set_reason(tokens_.items[row_++], text);
      return true;
    case finished_messages:
      // An unknown finish reason has left its own text here; the engine's says more.
      tokens_.items[row_++].finish_message = text;
      return true;
    case finished_matched:
      tokens_.items[row_++].matched_string = text;
      return true;
    default:
      return other_value();
    }
  }

  static void set_reason(output_item& item, std::string_view reason) {
    if (reason.empty()) {
      item.finish = core::finish_reason::none;
    } else if (reason == "length") {
      item.finish = core::finish_reason::length;
    } else if (reason == "stop") {
      item.finish = core::finish_reason::stop;
    } else {
      item.finish = core::finish_reason::abort;
      if (reason != "abort") {
        item.finish_message = "unknown finish reason \"" + std::string(reason.substr(0, 64)) + "\"";
      }
    }
  }

  std::span<const column> columns_{token_columns};
  column column_ = tag;
  kind kind_ = kind::tokens;
  std::size_t columns_read_ = 0;
  std::size_t columns_announced_ = 0;
  std::size_t columns_min_ = token_columns_min;
  std::size_t load_last_column_ = std::numeric_limits<std::size_t>::max();
  std::size_t row_ = 0;
  std::uint32_t engine_index_ = 0;
  load_tail load_;
  token_output tokens_;
  embedding_output embeddings_;
  control_reply control_;
};

} // namespace

wire_result<engine_output> decode_output(std::string_view frame) {
  if (frame == engine_core_dead_frame) {
    return engine_output(engine_dead{});
  }
  output_visitor visitor(frame.size());
  if (const auto parsed = parse_frame(frame, visitor); !parsed) {
    return tl::unexpected(parsed.error());
  }
  return visitor.take();
}

} // namespace rankwise::wire::sglang
