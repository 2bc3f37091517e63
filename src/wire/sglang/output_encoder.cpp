#include "wire/msgpack_writer.hpp"
#include "wire/sglang/output_codec.hpp"

#include <array>
#include <span>

namespace rankwise::wire::sglang {

namespace {

// Tag and 27 columns, smg-grpc-servicer 0.14.1.
constexpr std::size_t token_output_columns = 28;

std::string_view reason_text(core::finish_reason reason) noexcept {
  switch (reason) {
  case core::finish_reason::none:
    return "";
  case core::finish_reason::stop:
    return "stop";
  case core::finish_reason::length:
    return "length";
  case core::finish_reason::abort:
    return "abort";
  }
  return "";
}

void write_load(msgpack_writer& writer, const std::optional<load_tail>& load) {
  const load_tail tail = load.value_or(load_tail{});
  writer.unsigned_number(tail.num_running);
  writer.unsigned_number(tail.num_waiting);
  writer.unsigned_number(tail.kv_used_tokens);
  writer.unsigned_number(tail.kv_total_tokens);
}

template <class WriteOne>
void write_column(msgpack_writer& writer, const std::vector<output_item>& items, WriteOne write_one) {
  writer.array(items.size());
  for (const output_item& item : items) {
    write_one(item);
  }
}

/// A column that this engine leaves empty for every rid.
void write_empty_column(msgpack_writer& writer, std::size_t rows, char byte) {
  writer.array(rows);
  writer.repeat(rows, byte);
}

} // namespace

std::string encode_token_output(const token_output& batch, std::string_view raw_load) {
  const auto& items = batch.items;
  const std::size_t rows = items.size();
  std::string frame;
  frame.reserve(128 + 64 * rows + 5 * batch.tokens.size());
  msgpack_writer writer(frame);
  writer.array(token_output_columns);
  writer.text("BatchTokenIDSlimOutput");
  write_column(writer, items, [&](const output_item& item) { writer.text(item.rid); });
  write_column(writer, items, [&](const output_item& item) {
    writer.array(item.token_count);
    for (const std::int32_t token : std::span(batch.tokens).subspan(item.token_offset, item.token_count)) {
      writer.number(token);
    }
  });
  write_column(writer, items, [&](const output_item& item) { writer.text(reason_text(item.finish)); });
  write_column(writer, items, [&](const output_item& item) {
    item.finish_message.empty() ? writer.nil() : writer.text(item.finish_message);
  });
  write_column(writer, items, [&](const output_item& item) {
    if (!item.matched_string.empty()) {
      writer.text(item.matched_string);
    } else if (item.matched_token >= 0) {
      writer.number(item.matched_token);
    } else {
      writer.nil();
    }
  });
  write_column(writer, items, [&](const output_item& item) { writer.unsigned_number(item.prompt_tokens); });
  write_column(writer, items, [&](const output_item& item) { writer.unsigned_number(item.completion_tokens); });
  write_column(writer, items, [&](const output_item& item) { writer.unsigned_number(item.cached_tokens); });
  write_empty_column(writer, rows, msgpack_writer::empty_array_byte); // output_token_logprobs_val
  write_empty_column(writer, rows, msgpack_writer::empty_array_byte); // output_token_logprobs_idx
  writer.unsigned_number(batch.engine_index.value_or(0));
  if (raw_load.empty()) {
    write_load(writer, batch.load);
  } else {
    writer.raw(raw_load);
  }
  write_column(writer, items, [&](const output_item& item) {
    item.finish_status == 0 ? writer.nil() : writer.number(item.finish_status);
  });
  write_empty_column(writer, rows, msgpack_writer::empty_array_byte); // output_top_logprobs_val
  write_empty_column(writer, rows, msgpack_writer::empty_array_byte); // output_top_logprobs_idx
  write_empty_column(writer, rows, msgpack_writer::zero_byte);        // reasoning_tokens
  for (int column = 0; column < 6; ++column) {                        // input and per-token-id logprobs
    write_empty_column(writer, rows, msgpack_writer::empty_array_byte);
  }
  write_empty_column(writer, rows, msgpack_writer::nil_byte); // finished_err_types
  write_empty_column(writer, rows, msgpack_writer::nil_byte); // output_hidden_states
  return frame;
}

std::string encode_terminal_abort(std::string_view rid, std::string_view message, std::int32_t status,
                                  std::uint32_t engine_index, const std::optional<load_tail>& load) {
  std::string frame;
  msgpack_writer writer(frame);
  writer.array(token_output_columns);
  writer.text("BatchTokenIDSlimOutput");
  writer.array(1);
  writer.text(rid);
  write_empty_column(writer, 1, msgpack_writer::empty_array_byte);
  writer.array(1);
  writer.text("abort");
  writer.array(1);
  writer.text(message);
  write_empty_column(writer, 1, msgpack_writer::nil_byte);
  for (int column = 0; column < 3; ++column) { // prompt, completion and cached tokens
    write_empty_column(writer, 1, msgpack_writer::zero_byte);
  }
  write_empty_column(writer, 1, msgpack_writer::empty_array_byte);
  write_empty_column(writer, 1, msgpack_writer::empty_array_byte);
  writer.unsigned_number(engine_index);
  write_load(writer, load);
  writer.array(1);
  status == 0 ? writer.nil() : writer.number(status);
  writer.repeat(token_output_columns - 17, msgpack_writer::nil_byte);
  return frame;
}

std::string encode_control_reply(const control_reply& reply) {
  std::string frame;
  msgpack_writer writer(frame);
  writer.array(5);
  writer.text("ControlReplySlim");
  writer.number(reply.call_id);
  writer.boolean(reply.success);
  reply.message.empty() ? writer.nil() : writer.text(reply.message);
  writer.unsigned_number(reply.engine_index.value_or(0));
  return frame;
}

} // namespace rankwise::wire::sglang
