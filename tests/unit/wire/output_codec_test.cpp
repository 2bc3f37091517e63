#include "goldens.hpp"
#include "wire/msgpack_writer.hpp"
#include "wire/sglang/output_codec.hpp"

#include <functional>
#include <gtest/gtest.h>

namespace rankwise::wire::sglang {
namespace {

using core::finish_reason;
using goldens::bytes;

output_item item(std::string rid, std::uint32_t offset, std::uint32_t count) {
  output_item result;
  result.rid = std::move(rid);
  result.token_offset = offset;
  result.token_count = count;
  return result;
}

/// The batch behind goldens::tokens.
token_output golden_batch() {
  token_output batch;
  batch.tokens = {1, 2, 70'000, 5};
  batch.items = {item("r1~a.0", 0, 3), item("a-much-longer-rid-of-a-client~1z.2", 3, 1), item("r3", 4, 0)};
  batch.items[0].prompt_tokens = 10;
  batch.items[0].completion_tokens = 3;
  batch.items[1].prompt_tokens = 300;
  batch.items[1].completion_tokens = 1;
  batch.items[1].cached_tokens = 128;
  batch.items[1].finish = finish_reason::stop;
  batch.items[1].matched_token = 5;
  batch.items[2].prompt_tokens = 70'000;
  batch.items[2].finish = finish_reason::abort;
  batch.items[2].finish_message = "no luck";
  batch.items[2].finish_status = 500;
  batch.engine_index = 3;
  batch.load = load_tail{3, 1, 70'313, 1U << 20};
  return batch;
}

void expect_equal(const token_output& a, const token_output& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.engine_index, b.engine_index);
  EXPECT_EQ(a.load, b.load);
  EXPECT_EQ(a.load_malformed, b.load_malformed);
  ASSERT_EQ(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& x = a.items[i];
    const auto& y = b.items[i];
    EXPECT_EQ(x.rid, y.rid);
    EXPECT_EQ(x.token_offset, y.token_offset);
    EXPECT_EQ(x.token_count, y.token_count);
    EXPECT_EQ(x.finish, y.finish);
    EXPECT_EQ(x.finish_message, y.finish_message);
    EXPECT_EQ(x.matched_token, y.matched_token);
    EXPECT_EQ(x.matched_string, y.matched_string);
    EXPECT_EQ(x.prompt_tokens, y.prompt_tokens);
    EXPECT_EQ(x.completion_tokens, y.completion_tokens);
    EXPECT_EQ(x.cached_tokens, y.cached_tokens);
    EXPECT_EQ(x.finish_status, y.finish_status);
  }
}

/// A batch of one rid, column by column, so that a test can spoil one of them.
class batch_builder {
 public:
  batch_builder() {
    const auto one_nil = [](auto& w) {
      w.array(1);
      w.nil();
    };
    const auto one_number = [](auto& w) {
      w.array(1);
      w.number(1);
    };
    const auto one_empty = [](auto& w) {
      w.array(1);
      w.array(0);
    };
    const auto one_text = [](std::string text) {
      return [text](auto& w) {
        w.array(1);
        w.text(text);
      };
    };
    const auto number = [](std::uint64_t value) { return [value](auto& w) { w.unsigned_number(value); }; };
    columns_ = {[](auto& w) { w.text("BatchTokenIDSlimOutput"); },
                one_text("r~1.0"),
                [](auto& w) {
                  w.array(1);
                  w.array(2);
                  w.number(7);
                  w.number(8);
                },
                one_text(""),
                one_nil,
                one_nil,
                one_number,
                one_number,
                one_number,
                one_empty,
                one_empty,
                number(0),
                number(4),
                number(5),
                number(6),
                number(100),
                one_nil};
  }

  batch_builder& set(std::size_t column, std::function<void(msgpack_writer&)> write) {
    columns_.at(column) = std::move(write);
    return *this;
  }
  batch_builder& keep(std::size_t columns) {
    columns_.resize(columns, [](auto& w) { w.nil(); });
    return *this;
  }
  [[nodiscard]] std::string frame() const {
    std::string result;
    msgpack_writer writer(result);
    writer.array(columns_.size());
    for (const auto& write : columns_) {
      write(writer);
    }
    return result;
  }
  [[nodiscard]] wire_result<engine_output> decode() const { return decode_output(frame()); }
  [[nodiscard]] token_output good() const {
    auto decoded = decode();
    EXPECT_TRUE(decoded) << to_string(decoded.error());
    return decoded ? std::get<token_output>(*decoded) : token_output{};
  }
  void expect_error(wire_error_kind kind, std::string_view field) const {
    const auto decoded = decode();
    ASSERT_FALSE(decoded);
    EXPECT_EQ(to_string(decoded.error().kind), to_string(kind));
    EXPECT_EQ(decoded.error().field, field);
  }

 private:
  std::vector<std::function<void(msgpack_writer&)>> columns_;
};

TEST(output_codec_test, a_batch_is_byte_for_byte_the_plugins) {
  EXPECT_EQ(encode_token_output(golden_batch()), bytes(goldens::tokens));
}

TEST(output_codec_test, a_batch_of_the_plugin_is_decoded_whole) {
  const auto decoded = decode_output(bytes(goldens::tokens));
  ASSERT_TRUE(decoded) << to_string(decoded.error());
  expect_equal(std::get<token_output>(*decoded), golden_batch());
}

// 44. a load tail of zeros is no report
TEST(output_codec_test, a_stop_string_and_a_length_are_told_apart) {
  const auto decoded = decode_output(bytes(goldens::tokens_string_stop));
  ASSERT_TRUE(decoded);
  const auto& batch = std::get<token_output>(*decoded);
  EXPECT_EQ(batch.items[1].matched_string, "END");
  EXPECT_EQ(batch.items[1].matched_token, -1);
  EXPECT_EQ(batch.items[2].finish, finish_reason::length);
  EXPECT_FALSE(batch.load); // kv_total_tokens 0: no report
  EXPECT_FALSE(batch.load_malformed);
}

TEST(output_codec_test, terminal_aborts_are_byte_for_byte_the_plugins) {
  EXPECT_EQ(encode_terminal_abort("r9", "input_ids are required on this wire", 400, 3, std::nullopt),
            bytes(goldens::terminal_abort_400));
  EXPECT_EQ(encode_terminal_abort("r9", "Aborted", 0, 3, std::nullopt), bytes(goldens::terminal_abort_no_status));
  const auto decoded = decode_output(bytes(goldens::terminal_abort_400));
  ASSERT_TRUE(decoded);
  const auto& only = std::get<token_output>(*decoded).items.at(0);
  EXPECT_EQ(only.finish, finish_reason::abort);
  EXPECT_EQ(only.finish_status, 400);
  EXPECT_EQ(only.finish_message, "input_ids are required on this wire");
}

TEST(output_codec_test, control_replies_are_byte_for_byte_the_plugins) {
  EXPECT_EQ(encode_control_reply({77, true, "", 3}), bytes(goldens::control_reply));
  const control_reply refusal{300, false, "unknown control method 'x'", 3};
  EXPECT_EQ(encode_control_reply(refusal), bytes(goldens::control_reply_with_message));
  const auto decoded = decode_output(bytes(goldens::control_reply_with_message));
  ASSERT_TRUE(decoded);
  const auto& reply = std::get<control_reply>(*decoded);
  EXPECT_EQ(reply.call_id, 300);
  EXPECT_FALSE(reply.success);
  EXPECT_EQ(reply.message, refusal.message);
  EXPECT_EQ(reply.engine_index, 3U);
}

TEST(output_codec_test, embeddings_are_read_for_rids_and_load) {
  const auto decoded = decode_output(bytes(goldens::embedding));
  ASSERT_TRUE(decoded) << to_string(decoded.error());
  const auto& output = std::get<embedding_output>(*decoded);
  EXPECT_EQ(output.rids, (std::vector<std::string>{"e1", "e2"}));
  EXPECT_EQ(output.engine_index, 3U);
  EXPECT_EQ(output.load, (load_tail{1, 2, 3, 4}));
}

TEST(output_codec_test, the_dead_sentinel_is_known) {
  const auto decoded = decode_output("ENGINE_CORE_DEAD");
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(std::holds_alternative<engine_dead>(*decoded));
}

TEST(output_codec_test, the_tail_may_stop_after_column_10_or_15) {
  const auto short_batch = batch_builder().keep(11).good();
  EXPECT_EQ(short_batch.tokens, (std::vector<std::int32_t>{7, 8}));
  EXPECT_FALSE(short_batch.engine_index) << "it says nothing, not rank 0";
  EXPECT_FALSE(short_batch.load);
  EXPECT_FALSE(short_batch.load_malformed);
  EXPECT_EQ(batch_builder().keep(16).good().load, (load_tail{4, 5, 6, 100}));
  EXPECT_FALSE(batch_builder().keep(15).good().load); // half a report is none
  batch_builder().keep(9).expect_error(wire_error_kind::missing_field, "output_token_logprobs_val");
  batch_builder().keep(3).expect_error(wire_error_kind::missing_field, "finished_reasons");
}

TEST(output_codec_test, columns_that_a_newer_release_appends_are_ignored) {
  EXPECT_EQ(batch_builder().keep(40).good().tokens.size(), 2U);
}

TEST(output_codec_test, a_load_tail_of_nonsense_costs_the_report_only) {
  using write = std::function<void(msgpack_writer&)>;
  const std::vector<write> nonsense{[](auto& w) { w.text("lots"); },
                                    [](auto& w) { w.nil(); },
                                    [](auto& w) { w.boolean(true); },
                                    [](auto& w) { w.real(0.5); },
                                    [](auto& w) { w.number(-1); },
                                    [](auto& w) { w.unsigned_number(std::uint64_t{1} << 63); },
                                    [](auto& w) {
                                      w.array(2);
                                      w.text("a");
                                      w.map(1);
                                      w.number(1);
                                      w.array(0);
                                    },
                                    [](auto& w) {
                                      w.map(1);
                                      w.number(1);
                                      w.nil();
                                    }};
  for (std::size_t column = 12; column <= 15; ++column) {
    for (std::size_t i = 0; i < nonsense.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "column " << column << " nonsense " << i);
      const auto batch = batch_builder().set(column, nonsense[i]).good();
      EXPECT_TRUE(batch.load_malformed);
      EXPECT_FALSE(batch.load);
      EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{7, 8}));
      EXPECT_EQ(batch.items.at(0).finish_status, 0);
    }
  }
}

TEST(output_codec_test, columns_of_different_length_are_refused_by_name) {
  const std::vector<std::pair<std::size_t, std::string_view>> columns{
      {2, "output_ids"},    {3, "finished_reasons"},  {4, "finished_messages"}, {5, "finished_matched"},
      {6, "prompt_tokens"}, {7, "completion_tokens"}, {8, "cached_tokens"},     {16, "finished_status"}};
  for (const auto& [column, name] : columns) {
    batch_builder().set(column, [](auto& w) { w.array(0); }).expect_error(wire_error_kind::column_length, name);
    batch_builder()
        .set(column,
             [](auto& w) {
               w.array(2);
               w.nil();
               w.nil();
             })
        .expect_error(wire_error_kind::column_length, name);
  }
}

TEST(output_codec_test, columns_of_another_type_are_refused_by_name) {
  const std::vector<std::pair<std::size_t, std::string_view>> columns{{1, "rids"},
                                                                      {2, "output_ids"},
                                                                      {3, "finished_reasons"},
                                                                      {4, "finished_messages"},
                                                                      {5, "finished_matched"},
                                                                      {6, "prompt_tokens"},
                                                                      {7, "completion_tokens"},
                                                                      {8, "cached_tokens"},
                                                                      {11, "engine_index"},
                                                                      {16, "finished_status"}};
  for (const auto& [column, name] : columns) {
    batch_builder().set(column, [](auto& w) { w.text("x"); }).expect_error(wire_error_kind::wrong_type, name);
    batch_builder().set(column, [](auto& w) { w.map(0); }).expect_error(wire_error_kind::wrong_type, name);
    if (column == 11) {
      continue;
    }
    batch_builder()
        .set(column,
             [](auto& w) {
               w.array(1);
               w.boolean(true);
             })
        .expect_error(wire_error_kind::wrong_type, name);
    batch_builder()
        .set(column,
             [](auto& w) {
               w.array(1);
               w.map(0);
             })
        .expect_error(wire_error_kind::wrong_type, name);
  }
  const auto nested_token = [](auto& w) {
    w.array(1);
    w.array(1);
    w.array(0);
  };
  batch_builder().set(2, nested_token).expect_error(wire_error_kind::wrong_type, "output_ids");
  const auto text_token = [](auto& w) {
    w.array(1);
    w.array(1);
    w.text("7");
  };
  batch_builder().set(2, text_token).expect_error(wire_error_kind::wrong_type, "output_ids");
}

TEST(output_codec_test, a_count_or_token_beyond_its_field_is_too_large) {
  const auto wide = [](auto& w) {
    w.array(1);
    w.unsigned_number(std::uint64_t{1} << 40);
  };
  batch_builder().set(6, wide).expect_error(wire_error_kind::too_large, "prompt_tokens");
  const auto wide_token = [](auto& w) {
    w.array(1);
    w.array(1);
    w.unsigned_number(std::uint64_t{1} << 31);
  };
  batch_builder().set(2, wide_token).expect_error(wire_error_kind::too_large, "output_ids");
}

TEST(output_codec_test, an_unknown_tag_is_named) {
  batch_builder()
      .set(0, [](auto& w) { w.text("BatchStrOutput"); })
      .expect_error(wire_error_kind::unknown_tag, "BatchStrOutput");
  batch_builder().set(0, [](auto& w) { w.number(5); }).expect_error(wire_error_kind::unknown_tag, "");
  batch_builder().set(0, [](auto& w) { w.array(0); }).expect_error(wire_error_kind::unknown_tag, "");
}

TEST(output_codec_test, an_unknown_finish_reason_ends_as_an_abort_that_names_it) {
  const auto reason = [](auto& w) {
    w.array(1);
    w.text("evicted");
  };
  const auto batch = batch_builder().set(3, reason).good();
  EXPECT_EQ(batch.items[0].finish, finish_reason::abort);
  EXPECT_EQ(batch.items[0].finish_message, "unknown finish reason \"evicted\"");
}

TEST(output_codec_test, what_is_no_array_is_refused) {
  for (const std::string frame : {"\x80", "\xc0", "\x07", "\xa1x", "\xc3", "ENGINE_CORE_DEA"}) {
    const auto decoded = decode_output(frame);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().kind, wire_error_kind::not_an_array);
  }
  EXPECT_EQ(decode_output("").error().kind, wire_error_kind::truncated);
  EXPECT_EQ(decode_output("\xc1").error().kind, wire_error_kind::not_msgpack);
  EXPECT_EQ(decode_output("\x90").error().kind, wire_error_kind::unknown_tag);
}

TEST(output_codec_test, announced_lengths_are_believed_only_as_far_as_the_frame_reaches) {
  const std::string head = batch_builder().frame().substr(0, 26);
  for (const std::string_view length :
       {std::string_view("\xdd\xff\xff\xff\xff", 5), std::string_view("\xdc\xff\xff", 3)}) {
    const auto decoded = decode_output(head + std::string(length));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().kind, wire_error_kind::truncated);
  }
}

TEST(output_codec_test, batches_and_nesting_beyond_the_limits_are_refused) {
  const auto many_rids = [](auto& w) {
    w.array(batch_rids_max + 1);
    w.repeat(batch_rids_max + 1, msgpack_writer::empty_string_byte);
  };
  batch_builder().set(1, many_rids).expect_error(wire_error_kind::too_large, "rids");
  const auto many_tokens = [](auto& w) {
    w.array(1);
    w.array(batch_tokens_max + 1);
    w.repeat(batch_tokens_max + 1, msgpack_writer::zero_byte);
  };
  batch_builder().set(2, many_tokens).expect_error(wire_error_kind::too_large, "output_ids");
  const auto deep = [](auto& w) {
    for (int i = 0; i < 100'000; ++i) {
      w.array(1);
    }
    w.nil();
  };
  // What is stepped over may be nested at will: that costs neither memory nor stack.
  EXPECT_EQ(batch_builder().set(9, deep).good().tokens.size(), 2U);
  EXPECT_TRUE(batch_builder().set(12, deep).good().load_malformed);
}

TEST(output_codec_test, trailing_bytes_are_seen_when_the_frame_ends_with_our_columns) {
  EXPECT_EQ(decode_output(batch_builder().frame() + "x").error().kind, wire_error_kind::trailing_bytes);
  EXPECT_EQ(decode_output(bytes(goldens::control_reply) + "x").error().kind, wire_error_kind::trailing_bytes);
}

TEST(output_codec_test, a_frame_cut_anywhere_is_an_error_or_the_same_batch) {
  for (const std::string_view golden : {goldens::tokens, goldens::tokens_string_stop, goldens::terminal_abort_400,
                                        goldens::control_reply, goldens::embedding}) {
    const std::string whole = bytes(golden);
    const auto expected = decode_output(whole);
    ASSERT_TRUE(expected);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const auto decoded = decode_output(whole.substr(0, size));
      if (!decoded) {
        EXPECT_EQ(decoded.error().kind, wire_error_kind::truncated) << size;
      } else if (const auto* batch = std::get_if<token_output>(&*decoded)) {
        expect_equal(*batch, std::get<token_output>(*expected));
      } else {
        ADD_FAILURE() << "cut at " << size;
      }
    }
  }
}

TEST(output_codec_test, no_single_changed_byte_throws_or_reads_astray) {
  const std::string whole = bytes(goldens::tokens);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      static_cast<void>(decode_output(changed));
    }
  }
}

} // namespace
} // namespace rankwise::wire::sglang
