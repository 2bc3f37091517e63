#include "goldens.hpp"
#include "wire/msgpack_writer.hpp"
#include "wire/sglang/layouts.hpp"
#include "wire/sglang/request_codec.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <msgpack.hpp>

namespace rankwise::wire::sglang {
namespace {

registration with_layouts(layouts layouts) {
  registration r;
  r.positional_layouts = std::move(layouts);
  return r;
}

core::generate_request plain_request() {
  core::generate_request request;
  request.rid = "r1";
  request.input_ids = {1, 200, 70'000};
  request.sampling.max_new_tokens = 16;
  return request;
}

core::generate_request full_request() {
  auto request = plain_request();
  auto& s = request.sampling;
  s.min_new_tokens = 2;
  s.temperature = 0.5;
  s.top_p = 0.9;
  s.top_k = 40;
  s.min_p = 0.1;
  s.frequency_penalty = 0.25;
  s.presence_penalty = -0.25;
  s.repetition_penalty = 1.1;
  s.stop = {"END", "\n"};
  s.stop_token_ids = {2, 3};
  s.regex = "a+";
  s.ignore_eos = true;
  s.skip_special_tokens = false;
  s.spaces_between_special_tokens = false;
  s.no_stop_trim = true;
  s.stream_interval = 4;
  s.logit_bias = {{"17", -1.5}};
  s.sampling_seed = -9;
  request.stream = false;
  request.bootstrap = core::bootstrap_info{"10.0.0.1", 8998, (std::int64_t{1} << 62) + 5};
  return request;
}

/// The value at a named field of an encoded ADD.
msgpack::object field_of(const msgpack::object& add, const std::vector<std::string>& layout, std::string_view name,
                         std::uint32_t tag = 1) {
  const auto at = static_cast<std::uint32_t>(std::find(layout.begin(), layout.end(), name) - layout.begin()) + tag;
  return at < add.via.array.size ? add.via.array.ptr[at] : msgpack::object();
}

class both_releases : public testing::TestWithParam<layouts> {
 protected:
  registration registration_ = with_layouts(GetParam());
  request_layout layout_ = *request_layout::from_registration(registration_);
};

INSTANTIATE_TEST_SUITE_P(releases, both_releases, testing::Values(sglang_0_5_23_layouts(), sglang_0_5_21_layouts()));

TEST_P(both_releases, a_plain_add_stops_at_stream) {
  const std::string payload = layout_.encode_add(plain_request(), "r1~1.0", std::nullopt);
  const auto tree = msgpack::unpack(payload.data(), payload.size());
  const auto& add = tree.get();
  ASSERT_EQ(add.via.array.size, 14U);
  EXPECT_EQ(add.via.array.ptr[0].as<std::string>(), "TokenizedGenerateReqInput");
  EXPECT_EQ(add.via.array.ptr[1].as<std::string>(), "r1~1.0");
  EXPECT_EQ(add.via.array.ptr[4].as<std::vector<int>>(), (std::vector<int>{1, 200, 70'000}));
  EXPECT_EQ(add.via.array.ptr[8].via.array.size, 1U); // max_new_tokens and nothing but defaults
  EXPECT_EQ(add.via.array.ptr[9].as<bool>(), false);
  EXPECT_EQ(add.via.array.ptr[10].as<int>(), -1);
  EXPECT_EQ(add.via.array.ptr[11].as<int>(), 0);
  EXPECT_TRUE(add.via.array.ptr[12].is_nil());
  EXPECT_EQ(add.via.array.ptr[13].as<bool>(), true);
}

TEST_P(both_releases, every_sampling_field_stands_where_the_rank_registered_it) {
  const std::string payload = layout_.encode_add(full_request(), "r1~1.0", std::nullopt);
  const auto tree = msgpack::unpack(payload.data(), payload.size());
  const auto& generate = registration_.positional_layouts.at("TokenizedGenerateReqInput");
  const auto& sampling = registration_.positional_layouts.at("SamplingParams");
  const auto params = field_of(tree.get(), generate, "sampling_params");
  const auto value = [&](std::string_view name) { return field_of(params, sampling, name, 0); };
  EXPECT_EQ(value("min_new_tokens").as<int>(), 2);
  EXPECT_EQ(value("temperature").as<double>(), 0.5);
  EXPECT_EQ(value("top_k").as<int>(), 40);
  EXPECT_EQ(value("stop").as<std::vector<std::string>>(), (std::vector<std::string>{"END", "\n"}));
  EXPECT_EQ(value("stop_token_ids").as<std::vector<int>>(), (std::vector<int>{2, 3}));
  EXPECT_TRUE(value("stop_regex").is_nil());
  EXPECT_EQ(value("n").as<int>(), 1);
  EXPECT_EQ(value("regex").as<std::string>(), "a+");
  EXPECT_TRUE(value("ebnf").is_nil());
  EXPECT_TRUE(value("ignore_eos").as<bool>());
  EXPECT_FALSE(value("skip_special_tokens").as<bool>());
  EXPECT_EQ(value("stream_interval").as<int>(), 4);
  EXPECT_EQ(value("logit_bias").via.map.ptr[0].key.as<std::string>(), "17");
  EXPECT_EQ(value("sampling_seed").as<int>(), -9);
  EXPECT_EQ(field_of(tree.get(), generate, "bootstrap_room").as<std::int64_t>(), (std::int64_t{1} << 62) + 5);
  EXPECT_EQ(tree.get().via.array.ptr[27].as<std::int64_t>(), (std::int64_t{1} << 62) + 5);
}

TEST_P(both_releases, a_simulated_rank_reads_what_the_node_writes) {
  const auto decoded = decode_command(0, layout_.encode_add(full_request(), "r1~1.0", std::nullopt), registration_);
  ASSERT_TRUE(decoded) << to_string(decoded.error());
  const auto& add = std::get<add_request>(*decoded);
  EXPECT_EQ(add.rid, "r1~1.0");
  EXPECT_EQ(add.input_ids, plain_request().input_ids);
  EXPECT_EQ(add.max_new_tokens, 16);
  EXPECT_TRUE(add.ignore_eos);
  EXPECT_FALSE(add.stream);
  EXPECT_EQ(add.bootstrap, full_request().bootstrap);
}

TEST_P(both_releases, the_room_chosen_by_the_node_wins_over_the_requests_own) {
  const core::bootstrap_info ours{"127.0.0.1", 9000, 7};
  const auto decoded = decode_command(0, layout_.encode_add(full_request(), "r", ours), registration_);
  EXPECT_EQ(std::get<add_request>(*decoded).bootstrap, ours);
}

TEST(request_codec_test, a_layout_with_an_inserted_field_is_followed) {
  auto shifted = sglang_0_5_23_layouts();
  auto& generate = shifted["TokenizedGenerateReqInput"];
  generate.insert(generate.begin() + 3, "brand_new");
  auto& sampling = shifted["SamplingParams"];
  sampling.insert(sampling.begin(), "also_new");
  const auto r = with_layouts(shifted);
  const auto decoded =
      decode_command(0, request_layout::from_registration(r)->encode_add(full_request(), "x", std::nullopt), r);
  ASSERT_TRUE(decoded) << to_string(decoded.error());
  const auto& add = std::get<add_request>(*decoded);
  EXPECT_EQ(add.rid, "x");
  EXPECT_EQ(add.max_new_tokens, 16);
  EXPECT_EQ(add.bootstrap, full_request().bootstrap);
}

TEST(request_codec_test, a_layout_that_lacks_a_field_is_refused_by_its_name) {
  for (const auto& [structure, field] :
       std::vector<std::pair<std::string, std::string>>{{"TokenizedGenerateReqInput", "input_ids"},
                                                        {"TokenizedGenerateReqInput", "bootstrap_room"},
                                                        {"SamplingParams", "top_p"}}) {
    auto lacking = sglang_0_5_23_layouts();
    auto& names = lacking[structure];
    names.erase(std::remove(names.begin(), names.end(), field), names.end());
    const auto layout = request_layout::from_registration(with_layouts(lacking));
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().kind, wire_error_kind::missing_field);
    EXPECT_EQ(layout.error().field, structure + "." + field);
  }
  auto none = sglang_0_5_23_layouts();
  none.erase("SamplingParams");
  EXPECT_EQ(request_layout::from_registration(with_layouts(none)).error().field, "SamplingParams");
}

TEST(request_codec_test, token_ids_as_bytes_are_read_too) {
  std::string payload;
  msgpack_writer w(payload);
  w.array(5);
  w.text("TokenizedGenerateReqInput");
  w.text("r");
  w.nil();
  w.nil();
  w.array(2);
  w.text("q");
  w.raw(std::string("\xc4\x10\x07\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0", 18));
  const auto decoded = decode_command(0, payload, with_layouts(sglang_0_5_23_layouts()));
  ASSERT_TRUE(decoded) << to_string(decoded.error());
  EXPECT_EQ(std::get<add_request>(*decoded).input_ids, (std::vector<std::int32_t>{7, 256}));
}

TEST(request_codec_test, aborts_and_control_calls_round_trip) {
  const auto r = with_layouts(sglang_0_5_23_layouts());
  const auto abort = decode_command(1, encode_abort({"a~1.0", "b~2.1"}), r);
  ASSERT_TRUE(abort);
  EXPECT_EQ(std::get<abort_request>(*abort).rids, (std::vector<std::string>{"a~1.0", "b~2.1"}));
  const auto control = decode_command(2, encode_control(77, "flush_cache", "\x91\x05"), r);
  ASSERT_TRUE(control);
  EXPECT_EQ(std::get<control_request>(*control).call_id, 77);
  EXPECT_EQ(std::get<control_request>(*control).method, "flush_cache");
  EXPECT_TRUE(decode_command(2, encode_control(-1, "stop_profile"), r));
}

TEST(request_codec_test, malformed_commands_are_errors_with_a_name) {
  const auto r = with_layouts(sglang_0_5_23_layouts());
  const auto kind = [&](std::uint8_t type, const std::string& payload) {
    const auto decoded = decode_command(type, payload, r);
    return decoded ? std::string("decoded") : to_string(decoded.error());
  };
  EXPECT_EQ(kind(9, "\x90"), "unknown_tag request type 9");
  EXPECT_EQ(kind(0, "\x80"), "not_an_array");
  EXPECT_EQ(kind(0, "\x90"), "unknown_tag");
  EXPECT_EQ(kind(0, "\x91\xa1x"), "unknown_tag x");
  EXPECT_EQ(kind(1, "\x91\x05"), "wrong_type rids");
  EXPECT_EQ(kind(1, "\x05"), "not_an_array rids");
  EXPECT_EQ(kind(1, std::string("\xdd\x00\xff\xff\xff", 5)), "too_large rids");
  EXPECT_EQ(kind(1, std::string("\xdc\xff\xff", 3)), "truncated rids");
  EXPECT_EQ(kind(2, "\x92\x01\xa1x"), "column_length control");
  EXPECT_EQ(kind(2, "\x93\xa1y\xa1x\x90"), "wrong_type call_id");
  EXPECT_EQ(kind(2, "\x93\x01\x02\x90"), "wrong_type method");
}

TEST(request_codec_test, an_add_cut_anywhere_is_an_error_whose_rid_can_still_be_found) {
  const auto r = with_layouts(sglang_0_5_23_layouts());
  const std::string whole = request_layout::from_registration(r)->encode_add(full_request(), "r1~1.0", std::nullopt);
  const std::size_t rid_ends = whole.find("r1~1.0") + 6;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    EXPECT_FALSE(decode_command(0, cut, r)) << size;
    EXPECT_EQ(peek_add_rid(cut).has_value(), size >= rid_ends) << size;
  }
}

TEST(request_codec_test, no_single_changed_byte_throws_or_reads_astray) {
  const auto r = with_layouts(sglang_0_5_23_layouts());
  const auto decoder = command_decoder::from_registration(r);
  const std::string whole = request_layout::from_registration(r)->encode_add(full_request(), "r1~1.0", std::nullopt);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      static_cast<void>(decoder->decode(0, changed));
      static_cast<void>(peek_add_rid(changed));
    }
  }
}

} // namespace
} // namespace rankwise::wire::sglang
