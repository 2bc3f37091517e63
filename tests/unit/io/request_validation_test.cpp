#include "io/front/outcome_status.hpp"
#include "io/front/request_validation.hpp"
#include "io/front/sglang_scheduler.pb.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace rankwise::io::front {
namespace {

namespace pb = ::sglang::grpc::scheduler;
using grpc::status_code;

pb::GenerateRequest good() {
  pb::GenerateRequest request;
  request.set_request_id("client-1");
  for (const std::uint32_t id : {5U, 6U, 7U}) {
    request.mutable_tokenized()->add_input_ids(id);
  }
  request.mutable_sampling_params()->set_max_new_tokens(16);
  request.set_stream(true);
  return request;
}

core::node_info node_of(std::string mode = "null") {
  core::node_info node;
  node.ready = true;
  node.dp_size = 8;
  node.max_model_len = 1000;
  node.disaggregation_mode = std::move(mode);
  return node;
}

class request_validation_test : public ::testing::Test {
 protected:
  front_options options_;
  request_validation validation_{options_};
};

TEST_F(request_validation_test, a_plain_request_arrives_as_it_was_sent) {
  const auto out = validation_.check(good(), node_of());
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(out->rid, "client-1");
  EXPECT_EQ(out->input_ids, (std::vector<std::int32_t>{5, 6, 7}));
  EXPECT_EQ(out->sampling.max_new_tokens, 16);
  EXPECT_EQ(out->samples, 1U);
  EXPECT_TRUE(out->stream);
  EXPECT_FALSE(out->data_parallel_rank);
  EXPECT_FALSE(out->bootstrap);
  EXPECT_FALSE(out->deadline);
}

TEST_F(request_validation_test, without_sampling_params_the_defaults_are_sglangs) {
  auto request = good();
  request.clear_sampling_params();
  const auto out = validation_.check(request, node_of());
  ASSERT_TRUE(out);
  EXPECT_EQ(out->sampling, core::sampling_params{});
  EXPECT_EQ(out->sampling.max_new_tokens, 128);
}

TEST_F(request_validation_test, zeros_of_proto3_mean_what_the_python_servicer_takes_them_for) {
  const auto out = validation_.check(good(), node_of());
  ASSERT_TRUE(out);
  EXPECT_EQ(out->sampling.temperature, 0.0) << "greedy";
  EXPECT_EQ(out->sampling.top_p, 1.0);
  EXPECT_EQ(out->sampling.top_k, -1);
  EXPECT_EQ(out->sampling.min_p, 0.0);
  EXPECT_EQ(out->sampling.repetition_penalty, 1.0);
  EXPECT_FALSE(out->sampling.skip_special_tokens);
}

TEST_F(request_validation_test, every_sampling_param_is_carried_over) {
  auto request = good();
  auto& p = *request.mutable_sampling_params();
  p.set_temperature(0.5F);
  p.set_top_p(0.25F);
  p.set_top_k(40);
  p.set_min_p(0.125F);
  p.set_frequency_penalty(-1.5F);
  p.set_presence_penalty(1.5F);
  p.set_repetition_penalty(1.25F);
  p.set_min_new_tokens(2);
  p.add_stop("END");
  p.add_stop_token_ids(7);
  p.set_skip_special_tokens(true);
  p.set_spaces_between_special_tokens(true);
  p.set_json_schema("{}");
  p.set_n(3);
  p.set_ignore_eos(true);
  p.set_no_stop_trim(true);
  p.set_stream_interval(4);
  (*p.mutable_logit_bias())["12"] = -1.0F;
  request.set_data_parallel_rank(7);
  request.mutable_disaggregated_params()->set_bootstrap_host("10.0.0.1");
  request.mutable_disaggregated_params()->set_bootstrap_port(8998);
  request.set_stream(false);
  auto in_a_room = request;
  in_a_room.mutable_sampling_params()->set_n(1);
  request.clear_disaggregated_params();
  const auto out = validation_.check(request, node_of());
  ASSERT_TRUE(out) << out.error().message;
  const auto& s = out->sampling;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.25);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_EQ(s.min_p, 0.125);
  EXPECT_EQ(s.frequency_penalty, -1.5);
  EXPECT_EQ(s.presence_penalty, 1.5);
  EXPECT_EQ(s.repetition_penalty, 1.25);
  EXPECT_EQ(s.min_new_tokens, 2);
  EXPECT_EQ(s.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(s.stop_token_ids, std::vector<std::int64_t>{7});
  EXPECT_TRUE(s.skip_special_tokens);
  EXPECT_TRUE(s.spaces_between_special_tokens);
  EXPECT_EQ(s.json_schema, "{}");
  EXPECT_TRUE(s.regex.empty() && s.ebnf.empty() && s.structural_tag.empty());
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_TRUE(s.no_stop_trim);
  EXPECT_EQ(s.stream_interval, 4);
  EXPECT_EQ(s.logit_bias, (std::map<std::string, double>{{"12", -1.0}}));
  EXPECT_EQ(out->samples, 3U);
  EXPECT_EQ(out->data_parallel_rank, 7);
  EXPECT_FALSE(out->bootstrap);
  EXPECT_EQ(validation_.check(in_a_room, node_of())->bootstrap, (core::bootstrap_info{"10.0.0.1", 8998, 0}))
      << "room 0 is a room";
  EXPECT_FALSE(out->stream);
}

TEST_F(request_validation_test, without_max_new_tokens_the_rest_of_the_context_is_the_limit) {
  auto request = good();
  request.mutable_sampling_params()->clear_max_new_tokens();
  EXPECT_EQ(validation_.check(request, node_of())->sampling.max_new_tokens, 1000 - 3 - 1);
  request.mutable_sampling_params()->set_max_new_tokens(500'000);
  EXPECT_EQ(validation_.check(request, node_of())->sampling.max_new_tokens, 1000 - 3 - 1) << "cut, as SGLang does";
  auto unknown = node_of();
  unknown.max_model_len = 0;
  EXPECT_EQ(validation_.check(request, unknown)->sampling.max_new_tokens, 500'000);
  request.mutable_sampling_params()->set_max_new_tokens(0);
  EXPECT_EQ(validation_.check(request, node_of())->sampling.max_new_tokens, 0);
}

TEST_F(request_validation_test, a_node_that_knows_no_figures_yet_checks_none) {
  auto request = good();
  request.set_data_parallel_rank(100);
  EXPECT_TRUE(validation_.check(request, core::node_info{}));
}

struct bad_case {
  const char* name;
  std::function<void(pb::GenerateRequest&)> spoil;
  status_code code;
  const char* text; ///< How the message begins.
  const char* mode = "null";
};

void PrintTo(const bad_case& c, std::ostream* out) {
  *out << c.name;
}

class bad_request_test : public request_validation_test, public ::testing::WithParamInterface<bad_case> {};

TEST_P(bad_request_test, is_refused_with_the_name_of_the_field) {
  auto request = good();
  GetParam().spoil(request);
  const auto out = validation_.check(request, node_of(GetParam().mode));
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().code, GetParam().code);
  EXPECT_EQ(out.error().message.substr(0, std::string_view{GetParam().text}.size()), GetParam().text)
      << out.error().message;
}

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr auto wrong = status_code::invalid_argument;
constexpr auto missing = status_code::unimplemented;

pb::SamplingParams& params(pb::GenerateRequest& r) {
  return *r.mutable_sampling_params();
}

const std::vector<bad_case> bad_cases{
    {"no_rid", [](auto& r) { r.clear_request_id(); }, wrong, "request_id: is required"},
    {"long_rid", [](auto& r) { r.set_request_id(std::string(257, 'x')); }, wrong, "request_id: xxxx"},
    {"rid_not_utf8", [](auto& r) { r.set_request_id("a\xff"); }, wrong, "request_id: is not UTF-8"},
    {"no_input", [](auto& r) { r.clear_tokenized(); }, wrong, "tokenized.input_ids: empty"},
    {"no_ids", [](auto& r) { r.mutable_tokenized()->clear_input_ids(); }, wrong, "tokenized.input_ids: empty"},
    {"huge_id", [](auto& r) { r.mutable_tokenized()->set_input_ids(1, 0x80000000U); }, wrong,
     "tokenized.input_ids[1]: 2147483648"},
    {"prompt_fills_the_context",
     [](auto& r) {
       for (int i = 0; i < 997; ++i) {
         r.mutable_tokenized()->add_input_ids(1);
       }
     },
     wrong, "tokenized.input_ids: 1000 tokens"},
    {"minus_one_tokens", [](auto& r) { params(r).set_max_new_tokens(0xffffffffU); }, wrong,
     "sampling_params.max_new_tokens: 4294967295"},
    {"min_over_max", [](auto& r) { params(r).set_min_new_tokens(17); }, wrong, "sampling_params.min_new_tokens: 17"},
    {"absurd_min", [](auto& r) { params(r).set_min_new_tokens(0xffffffffU); }, wrong,
     "sampling_params.min_new_tokens: 4294967295"},
    {"too_many_samples", [](auto& r) { params(r).set_n(129); }, wrong, "sampling_params.n: 129"},
    {"temperature_nan", [](auto& r) { params(r).set_temperature(nan_value); }, wrong,
     "sampling_params.temperature: nan"},
    {"temperature_infinite", [](auto& r) { params(r).set_temperature(infinity); }, wrong,
     "sampling_params.temperature: inf"},
    {"temperature_negative", [](auto& r) { params(r).set_temperature(-0.5F); }, wrong,
     "sampling_params.temperature: -0.5"},
    {"top_p_five", [](auto& r) { params(r).set_top_p(5); }, wrong, "sampling_params.top_p: 5 is not in (0, 1]"},
    {"top_p_negative", [](auto& r) { params(r).set_top_p(-1); }, wrong, "sampling_params.top_p: -1"},
    {"top_p_nan", [](auto& r) { params(r).set_top_p(nan_value); }, wrong, "sampling_params.top_p: nan"},
    {"top_k_minus_two", [](auto& r) { params(r).set_top_k(-2); }, wrong, "sampling_params.top_k: -2"},
    {"min_p_two", [](auto& r) { params(r).set_min_p(2); }, wrong, "sampling_params.min_p: 2"},
    {"frequency_penalty", [](auto& r) { params(r).set_frequency_penalty(2.5F); }, wrong,
     "sampling_params.frequency_penalty: 2.5 is not in [-2, 2]"},
    {"presence_penalty", [](auto& r) { params(r).set_presence_penalty(-2.5F); }, wrong,
     "sampling_params.presence_penalty: -2.5"},
    {"repetition_penalty", [](auto& r) { params(r).set_repetition_penalty(-1); }, wrong,
     "sampling_params.repetition_penalty: -1"},
    {"stream_interval", [](auto& r) { params(r).set_stream_interval(0); }, wrong, "sampling_params.stream_interval: 0"},
    {"many_stops",
     [](auto& r) {
       for (int i = 0; i < 33; ++i) {
         params(r).add_stop("x");
       }
     },
     wrong, "sampling_params.stop: 33 strings"},
    {"empty_stop", [](auto& r) { params(r).add_stop(""); }, wrong, "sampling_params.stop[0]: empty"},
    {"stop_token", [](auto& r) { params(r).add_stop_token_ids(0xffffffffU); }, wrong,
     "sampling_params.stop_token_ids[0]: 4294967295"},
    {"bias_key", [](auto& r) { (*params(r).mutable_logit_bias())["seven"] = 1; }, wrong,
     "sampling_params.logit_bias: key \"seven\""},
    {"bias_value", [](auto& r) { (*params(r).mutable_logit_bias())["7"] = nan_value; }, wrong,
     "sampling_params.logit_bias: value nan"},
    {"rank_negative", [](auto& r) { r.set_data_parallel_rank(-1); }, wrong, "data_parallel_rank: -1 is negative"},
    {"rank_nine_of_eight", [](auto& r) { r.set_data_parallel_rank(9); }, wrong,
     "data_parallel_rank: 9 is not one of the 8 ranks"},
    {"rank_eight_of_eight", [](auto& r) { r.set_data_parallel_rank(8); }, wrong, "data_parallel_rank: 8"},
    {"room_negative", [](auto& r) { r.mutable_disaggregated_params()->set_bootstrap_room(-5); }, wrong,
     "disaggregated_params.bootstrap_room: -5"},
    {"room_of_three",
     [](auto& r) {
       r.mutable_disaggregated_params()->set_bootstrap_room(5);
       params(r).set_n(3);
     },
     wrong, "sampling_params.n: 3 samples cannot share the bootstrap_room"},
    {"port", [](auto& r) { r.mutable_disaggregated_params()->set_bootstrap_port(70000); }, wrong,
     "disaggregated_params.bootstrap_port: 70000"},
    {"host", [](auto& r) { r.mutable_disaggregated_params()->set_bootstrap_host(std::string(300, 'h')); }, wrong,
     "disaggregated_params.bootstrap_host: hhh"},
    {"prefill_without_room", [](auto&) {}, wrong, "disaggregated_params.bootstrap_room: missing", "prefill"},
    {"decode_without_room", [](auto&) {}, wrong, "disaggregated_params.bootstrap_room: missing", "decode"},
    {"logprobs", [](auto& r) { r.set_return_logprob(true); }, missing, "return_logprob"},
    {"hidden_states", [](auto& r) { r.set_return_hidden_states(true); }, missing, "return_hidden_states"},
    {"images", [](auto& r) { r.mutable_mm_inputs()->add_image_urls("http://x"); }, missing, "mm_inputs"},
    {"embeddings", [](auto& r) { r.add_input_embeds(1); }, missing, "input_embeds"},
    {"lora", [](auto& r) { r.set_lora_id("a"); }, missing, "lora_id"},
    {"processor", [](auto& r) { r.set_custom_logit_processor("a"); }, missing, "custom_logit_processor"},
    {"custom_params", [](auto& r) { (*params(r).mutable_custom_params()->mutable_fields())["a"]; }, missing,
     "sampling_params.custom_params"},
    {"reasoning_with_grammar",
     [](auto& r) {
       r.set_require_reasoning(true);
       params(r).set_regex("a+");
     },
     missing, "require_reasoning"},
};

INSTANTIATE_TEST_SUITE_P(all, bad_request_test, ::testing::ValuesIn(bad_cases),
                         [](const auto& info) { return std::string{info.param.name}; });

TEST(utf8, only_well_formed_text_passes) {
  for (const auto* good_text :
       {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good_text)) << good_text;
  }
  for (const auto* bad_text : {"\x80", "\xff", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                               "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xe2\x82", "\xc3(", "\xf0\x9f\x98("}) {
    EXPECT_FALSE(is_utf8(bad_text)) << bad_text;
  }
}

TEST(outcome_status, every_failure_has_a_status_and_its_name_in_the_text) {
  for (std::uint8_t f = 1; f < core::failure_count; ++f) {
    const auto reason = static_cast<core::failure>(f);
    const auto status = to_status({core::outcome_kind::failed, reason, "why", 0});
    EXPECT_NE(status.code, status_code::ok) << int{f};
    EXPECT_NE(status.code, status_code::unknown) << int{f};
    EXPECT_EQ(status.message, std::string{core::to_string(reason)} + ": why");
  }
}

TEST(outcome_status, the_ones_that_the_gateway_repeats_are_those_where_another_try_may_help) {
  const auto code = [](core::failure f) { return to_status_code(f, 0); };
  EXPECT_EQ(code(core::failure::duplicate_rid), status_code::already_exists);
  EXPECT_EQ(code(core::failure::requests_in_flight_max), status_code::resource_exhausted);
  EXPECT_EQ(code(core::failure::no_rank_available), status_code::unavailable);
  EXPECT_EQ(code(core::failure::rank_lost), status_code::unavailable);
  EXPECT_EQ(code(core::failure::partner_leg_failed), status_code::internal);
  EXPECT_EQ(code(core::failure::deadline_exceeded), status_code::deadline_exceeded);
}

TEST(outcome_status, what_an_engine_says_is_read_as_an_http_status) {
  const auto code = [](std::int32_t http) { return to_status_code(core::failure::engine_error, http); };
  EXPECT_EQ(code(400), status_code::invalid_argument);
  EXPECT_EQ(code(429), status_code::resource_exhausted);
  EXPECT_EQ(code(503), status_code::unavailable);
  EXPECT_EQ(code(500), status_code::internal);
  EXPECT_EQ(code(0), status_code::internal);
}

TEST(outcome_status, completed_is_ok) {
  EXPECT_EQ(to_status({}), grpc::status{});
}

} // namespace
} // namespace rankwise::io::front
