#include "wire/msgpack_cursor.hpp"
#include "wire/sglang/output_codec.hpp"

#include <limits>
#include <utility>

namespace rankwise::wire::sglang {

namespace {

// Positions of smg-grpc-servicer 0.14.1; new columns are appended at the end only (the plugin's own promise).

/// Reads the columns of one frame in their order. Each step returns false after noting the error.
class output_reader {
 public:
  explicit output_reader(std::string_view frame) : cursor_(frame) {}

  wire_result<engine_output> read() {
    if (!cursor_.read_array(columns_)) {
      return tl::unexpected(wire_error{
          cursor_.error() == wire_error_kind::wrong_type ? wire_error_kind::not_an_array : cursor_.error(), {}});
    }
    std::string_view tag;
    if (columns_ == 0 || !cursor_.read_text(tag)) {
      const bool is_cut = columns_ > 0 && cursor_.error() != wire_error_kind::wrong_type;
      return tl::unexpected(wire_error{is_cut ? cursor_.error() : wire_error_kind::unknown_tag, {}});
    }
    ++read_;
    if (tag == "BatchTokenIDSlimOutput") {
      return finish(read_tokens(), [this] { return engine_output(std::move(tokens_)); });
    }
    if (tag == "BatchEmbeddingSlimOutput") {
      return finish(read_embeddings(), [this] { return engine_output(std::move(embeddings_)); });
    }
    if (tag == "ControlReplySlim") {
      return finish(read_control(), [this] { return engine_output(std::move(control_)); });
    }
    return tl::unexpected(wire_error{wire_error_kind::unknown_tag, std::string(tag.substr(0, 64))});
  }

 private:
  template <class Take>
  wire_result<engine_output> finish(bool good, Take take) {
    if (!good) {
      return tl::unexpected(std::move(error_));
    }
    if (read_ == columns_ && !cursor_.at_end()) {
      return tl::unexpected(wire_error{wire_error_kind::trailing_bytes, {}});
    }
    return take();
  }

  // -- the three messages
  // ------------------------------------------------------------------------------------------------

  bool read_tokens() {
    return read_rids() && read_output_ids() && read_reasons() && read_messages() && read_matched() &&
           read_counts("prompt_tokens", &output_item::prompt_tokens) &&
           read_counts("completion_tokens", &output_item::completion_tokens) &&
           read_counts("cached_tokens", &output_item::cached_tokens) && skip_column("output_token_logprobs_val") &&
           skip_column("output_token_logprobs_idx") && read_engine_index(tokens_.engine_index) &&
           read_load(tokens_.load, tokens_.load_malformed) && read_statuses();
  }

  bool read_embeddings() {
    std::uint32_t rows = 0;
    if (!start_column("rids", rows)) {
      return false;
    }
    embeddings_.rids.reserve(rows);
    for (std::uint32_t i = 0; i < rows; ++i) {
      std::string_view rid;
      if (!cursor_.read_text(rid)) {
        return fail("rids");
      }
      embeddings_.rids.emplace_back(rid);
    }
    bool malformed = false;
    return skip_column("embeddings") && skip_column("prompt_tokens") && skip_column("cached_tokens") &&
           skip_column("finished_reasons") && skip_column("finished_messages") && skip_column("finished_status") &&
           read_engine_index(embeddings_.engine_index) && read_load(embeddings_.load, malformed);
  }

  bool read_control() {
    if (!next_column("call_id")) {
      return false;
    }
    if (!cursor_.read_signed(control_.call_id)) {
      return fail("call_id");
    }
    if (!next_column("success")) {
      return false;
    }
    if (!cursor_.read_boolean(control_.success)) {
      return fail("success");
    }
    if (!is_over()) {
      ++read_;
      std::string_view message;
      if (!cursor_.read_nil() && !cursor_.read_text(message)) {
        return fail("message");
      }
      control_.message = message;
    }
    return read_engine_index(control_.engine_index);
  }

  // -- columns
  // -----------------------------------------------------------------------------------------------------------

  /// Whether the frame has no further column, which is fine from some column on.
  [[nodiscard]] bool is_over() const noexcept { return read_ == columns_; }

  bool next_column(std::string_view name) {
    if (is_over()) {
      return fail(wire_error_kind::missing_field, name);
    }
    ++read_;
    return true;
  }

  bool skip_column(std::string_view name) { return next_column(name) && (cursor_.skip() || fail(name)); }

  bool start_column(std::string_view name, std::uint32_t& rows) {
    if (!next_column(name)) {
      return false;
    }
    if (!cursor_.read_array(rows)) {
      return fail(name);
    }
    return rows <= batch_rids_max || fail(wire_error_kind::too_large, name);
  }

  /// A column of one value per rid; `read_one` reads the value into its item.
  template <class ReadOne>
  bool read_column(std::string_view name, ReadOne read_one) {
    std::uint32_t rows = 0;
    if (!start_column(name, rows)) {
      return false;
    }
    if (rows != tokens_.items.size()) {
      return fail(wire_error_kind::column_length, name);
    }
    for (output_item& item : tokens_.items) {
      if (!read_one(item)) {
        return fail(name);
      }
    }
    return true;
  }

  bool read_rids() {
    std::uint32_t rows = 0;
    if (!start_column("rids", rows)) {
      return false;
    }
    tokens_.items.reserve(rows);
    for (std::uint32_t i = 0; i < rows; ++i) {
      std::string_view rid;
      if (!cursor_.read_text(rid)) {
        return fail("rids");
      }
      tokens_.items.emplace_back().rid = std::string(rid);
    }
    return true;
  }

  bool read_output_ids() {
    tokens_.tokens.reserve(tokens_.items.size());
    return read_column("output_ids", [this](output_item& item) {
      item.token_offset = static_cast<std::uint32_t>(tokens_.tokens.size());
      if (!cursor_.read_array(item.token_count)) {
        return false;
      }
      if (item.token_offset + item.token_count > batch_tokens_max) {
        return note(wire_error_kind::too_large);
      }
      for (std::uint32_t i = 0; i < item.token_count; ++i) {
        std::uint64_t token = 0;
        if (!cursor_.read_unsigned(token)) {
          return false;
        }
        if (!std::in_range<std::int32_t>(token)) {
          return note(wire_error_kind::too_large);
        }
        tokens_.tokens.push_back(static_cast<std::int32_t>(token));
      }
      return true;
    });
  }

  bool read_reasons() {
    return read_column("finished_reasons", [this](output_item& item) {
      std::string_view reason;
      if (!cursor_.read_text(reason)) {
        return false;
      }
      if (!reason.empty()) {
        set_reason(item, reason);
      }
      return true;
    });
  }

  static void set_reason(output_item& item, std::string_view reason) {
    if (reason == "length") {
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

  bool read_messages() {
    return read_column("finished_messages", [this](output_item& item) {
      std::string_view message;
      if (cursor_.read_nil()) {
        return true;
      }
      if (!cursor_.read_text(message)) {
        return false;
      }
      item.finish_message = message;
      return true;
    });
  }

  bool read_matched() {
    return read_column("finished_matched", [this](output_item& item) {
      if (cursor_.read_nil()) {
        return true;
      }
      std::string_view text;
      if (cursor_.read_text(text)) {
        item.matched_string = text;
        return true;
      }
      return cursor_.error() == wire_error_kind::wrong_type && cursor_.read_signed(item.matched_token);
    });
  }

  bool read_counts(std::string_view name, std::uint32_t output_item::*into) {
    return read_column(name, [this, into](output_item& item) { return read_count(item.*into); });
  }

  bool read_count(std::uint32_t& into) {
    std::uint64_t value = 0;
    if (!cursor_.read_unsigned(value)) {
      return false;
    }
    if (!std::in_range<std::uint32_t>(value)) {
      return note(wire_error_kind::too_large);
    }
    into = static_cast<std::uint32_t>(value);
    return true;
  }

  // -- columns from here on may be absent
  // --------------------------------------------------------------------------------

  bool read_engine_index(std::optional<std::uint32_t>& into) {
    if (is_over()) {
      return true;
    }
    ++read_;
    return read_count(into.emplace()) || fail("engine_index");
  }

  /// One number of the load tail; anything else is stepped over and spoils the report alone.
  bool read_load_number(std::uint64_t limit, std::uint64_t& into, bool& malformed) {
    ++read_;
    if (cursor_.read_unsigned(into)) {
      malformed = malformed || into > limit;
      return true;
    }
    malformed = true;
    return cursor_.skip() || fail("load");
  }

  bool read_load(std::optional<load_tail>& load, bool& malformed) {
    constexpr std::uint64_t count_max = std::numeric_limits<std::uint32_t>::max();
    constexpr std::uint64_t tokens_max =
        std::numeric_limits<std::int64_t>::max(); // the engine counts in signed 64 bits
    std::uint64_t running = 0;
    std::uint64_t waiting = 0;
    load_tail read;
    for (const auto& [limit, into] :
         {std::pair{count_max, &running}, std::pair{count_max, &waiting}, std::pair{tokens_max, &read.kv_used_tokens},
          std::pair{tokens_max, &read.kv_total_tokens}}) {
      if (is_over()) {
        return true; // half a report is none
      }
      if (!read_load_number(limit, *into, malformed)) {
        return false;
      }
    }
    if (!malformed && read.kv_total_tokens > 0) {
      read.num_running = static_cast<std::uint32_t>(running);
      read.num_waiting = static_cast<std::uint32_t>(waiting);
      load = read;
    }
    return true;
  }

  bool read_statuses() {
    if (is_over()) {
      return true;
    }
    if (cursor_.read_nil()) {
      ++read_;
      return true;
    }
    return read_column("finished_status", [this](output_item& item) {
      if (cursor_.read_nil()) {
        return true;
      }
      std::uint64_t status = 0;
      if (!cursor_.read_unsigned(status)) {
        return false;
      }
      if (!std::in_range<std::int32_t>(status)) {
        return note(wire_error_kind::too_large);
      }
      item.finish_status = static_cast<std::int32_t>(status);
      return true;
    });
  }

  // -- errors
  // ------------------------------------------------------------------------------------------------------------

  /// An error that is ours, not the cursor's; `fail` names the column.
  bool note(wire_error_kind kind) {
    noted_ = kind;
    return false;
  }
  bool fail(std::string_view column) { return fail(noted_.value_or(cursor_.error()), column); }
  bool fail(wire_error_kind kind, std::string_view column) {
    error_ = wire_error{kind, std::string(column)};
    return false;
  }

  msgpack_cursor cursor_;
  std::uint32_t columns_ = 0; ///< announced, the tag among them
  std::uint32_t read_ = 0;
  std::optional<wire_error_kind> noted_;
  wire_error error_;
  token_output tokens_;
  embedding_output embeddings_;
  control_reply control_;
};

} // namespace

wire_result<engine_output> decode_output(std::string_view frame) {
  if (frame == engine_core_dead_frame) {
    return engine_output(engine_dead{});
  }
  return output_reader(frame).read();
}

} // namespace rankwise::wire::sglang
