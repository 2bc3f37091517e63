#include "fake_intake.hpp"
#include "io/front/grpc_health.pb.h"
#include "io/front/grpc_reflection_v1.pb.h"
#include "io/front/model_naming.hpp"
#include "io/front/scheduler_front.hpp"
#include "io/front/sglang_scheduler.pb.h"
#include "raw_client.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace rankwise::io::front {
namespace {

namespace pb = ::sglang::grpc::scheduler;
using namespace std::chrono_literals;
using core::failure;
using core::finish_reason;
using core::outcome_kind;
using testing::batch_builder;
using testing::client_settings;
using testing::framed;
using testing::raw_client;

class real_clock final : public core::clock {
 public:
  [[nodiscard]] core::timestamp now() const noexcept override { return std::chrono::steady_clock::now(); }
};

std::string path(std::string_view method) {
  return "/sglang.grpc.scheduler.SglangScheduler/" + std::string{method};
}

pb::GenerateRequest request_of(std::string rid, std::uint32_t samples = 1, bool stream = true) {
  pb::GenerateRequest request;
  request.set_request_id(std::move(rid));
  request.mutable_tokenized()->add_input_ids(1);
  request.mutable_sampling_params()->set_max_new_tokens(100);
  request.mutable_sampling_params()->set_n(samples);
  request.set_stream(stream);
  return request;
}

std::vector<pb::GenerateResponse> responses(const testing::reply& in) {
  std::vector<pb::GenerateResponse> out;
  for (const auto& bytes : in.messages()) {
    EXPECT_TRUE(out.emplace_back().ParseFromString(bytes));
  }
  return out;
}

std::vector<std::uint32_t> ids(const google::protobuf::RepeatedField<std::uint32_t>& field) {
  return {field.begin(), field.end()};
}

class scheduler_front_test : public ::testing::Test {
 protected:
  void start(front_options options = {}) {
    core::node_info node;
    node.ready = true;
    node.dp_size = 8;
    node.max_total_num_tokens = 80'000;
    node.max_running_requests = 32;
    node.max_model_len = 4096;
    node.requests_in_flight = 5;
    node.engine_version = "sglang-0.5.23";
    node.disaggregation_mode = "null";
    intake_.set_info(node);
    front_ = std::make_unique<scheduler_front>(std::move(options), intake_, clock_);
    const auto started = front_->start();
    ASSERT_TRUE(started) << started.error();
    client_ = std::make_unique<raw_client>(front_->port());
  }

  std::int32_t generate(const pb::GenerateRequest& request, const testing::headers& more = {}) {
    const auto id = client_->open(path("Generate"), framed(request.SerializeAsString()), true, more);
    client_->flush();
    client_->pump([] { return false; }, 1ms);
    return id;
  }

  /// The handle by which the front names the n-th request.
  core::stream_id stream(std::size_t n) {
    client_->flush();
    const auto seen = intake_.request(n);
    EXPECT_NE(seen.request, nullptr);
    return seen.stream;
  }

  template <class Response, class Request>
  Response unary(const std::string& at, const Request& request) {
    Response out;
    const auto& in = client_->wait(client_->open(at, framed(request.SerializeAsString())));
    EXPECT_EQ(in.status(), 0) << in.message();
    const auto messages = in.messages();
    EXPECT_EQ(messages.size(), 1U);
    EXPECT_TRUE(!messages.empty() && out.ParseFromString(messages[0]));
    return out;
  }

  testing::fake_intake intake_;
  real_clock clock_;
  std::unique_ptr<scheduler_front> front_;
  std::unique_ptr<raw_client> client_;
};

// --- Generate
// ---------------------------------------------------------------------------------------------------------

TEST_F(scheduler_front_test, a_stream_is_chunks_of_new_tokens_and_a_complete_with_all_of_them) {
  start();
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  front_->deliver(batch_builder{}.tokens(s, {10, 11}, 2).take());
  ASSERT_TRUE(client_->pump([&] { return client_->of(id).messages().size() == 1; }));
  front_->deliver(batch_builder{}.tokens(s, {12}, 3, 0, finish_reason::stop).matched_token(12).take());
  const auto& in = client_->wait(id);
  EXPECT_EQ(in.status(), 0);
  const auto got = responses(in);
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[0].request_id(), "r");
  EXPECT_EQ(ids(got[0].chunk().token_ids()), (std::vector<std::uint32_t>{10, 11}));
  EXPECT_EQ(got[0].chunk().completion_tokens(), 2U);
  EXPECT_EQ(got[0].chunk().prompt_tokens(), 3U);
  EXPECT_EQ(got[0].chunk().cached_tokens(), 1U);
  EXPECT_EQ(ids(got[1].chunk().token_ids()), std::vector<std::uint32_t>{12});
  EXPECT_EQ(got[1].chunk().completion_tokens(), 3U);
  ASSERT_TRUE(got[2].has_complete());
  EXPECT_EQ(got[2].request_id(), "r");
  EXPECT_EQ(ids(got[2].complete().output_ids()), (std::vector<std::uint32_t>{10, 11, 12}));
  EXPECT_EQ(got[2].complete().finish_reason(), "stop");
  EXPECT_EQ(got[2].complete().matched_token_id(), 12U);
  EXPECT_EQ(got[2].complete().completion_tokens(), 3U);
  EXPECT_TRUE(intake_.cancels(1, 20ms).empty()) << "what ended by itself is not cancelled";
}

TEST_F(scheduler_front_test, finish_reasons_and_stop_strings_are_told) {
  start();
  const auto one = generate(request_of("a"));
  const auto two = generate(request_of("b"));
  front_->deliver(batch_builder{}
                      .tokens(stream(0), {1}, 1, 0, finish_reason::length)
                      .tokens(stream(1), {2}, 1, 0, finish_reason::stop)
                      .matched_string("END")
                      .take());
  EXPECT_EQ(responses(client_->wait(one)).back().complete().finish_reason(), "length");
  EXPECT_EQ(responses(client_->wait(one)).back().complete().matched_stop_case(),
            pb::GenerateComplete::MATCHED_STOP_NOT_SET);
  EXPECT_EQ(responses(client_->wait(two)).back().complete().matched_stop_str(), "END");
}

TEST_F(scheduler_front_test, without_stream_there_is_only_the_complete) {
  start();
  const auto id = generate(request_of("r", 1, false));
  const auto s = stream(0);
  front_->deliver(batch_builder{}.tokens(s, {1, 2}, 2).take());
  front_->deliver(batch_builder{}.tokens(s, {3}, 3, 0, finish_reason::length).take());
  const auto got = responses(client_->wait(id));
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(ids(got[0].complete().output_ids()), (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST_F(scheduler_front_test, samples_carry_their_index_and_the_stream_ends_after_the_last) {
  start();
  const auto id = generate(request_of("r", 2));
  EXPECT_EQ(intake_.request(0).request->samples, 2U);
  const auto s = stream(0);
  front_->deliver(batch_builder{}.tokens(s, {1}, 1, 0).tokens(s, {5}, 1, 1).take());
  front_->deliver(batch_builder{}.tokens(s, {6}, 2, 1, finish_reason::stop).take());
  ASSERT_TRUE(client_->pump([&] {
    const auto got = responses(client_->of(id));
    return !got.empty() && got.back().has_complete();
  }));
  EXPECT_FALSE(client_->of(id).closed);
  front_->deliver(batch_builder{}.tokens(s, {2}, 2, 0, finish_reason::length).take());
  std::map<std::uint32_t, std::vector<std::uint32_t>> chunks;
  std::map<std::uint32_t, std::vector<std::uint32_t>> completes;
  for (const auto& r : responses(client_->wait(id))) {
    if (r.has_chunk()) {
      const auto more = ids(r.chunk().token_ids());
      auto& all = chunks[r.chunk().index()];
      all.insert(all.end(), more.begin(), more.end());
    } else {
      completes[r.complete().index()] = ids(r.complete().output_ids());
    }
  }
  EXPECT_EQ(chunks, completes);
  EXPECT_EQ(completes, (std::map<std::uint32_t, std::vector<std::uint32_t>>{{0, {1, 2}}, {1, {5, 6}}}));
  EXPECT_EQ(client_->of(id).status(), 0);
}

TEST_F(scheduler_front_test, tokens_that_queue_behind_a_write_leave_as_one_chunk) {
  start();
  client_ = std::make_unique<raw_client>(front_->port(), client_settings{0, false}); // shut until told otherwise
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  for (std::int32_t i = 0; i < 50; ++i) {
    front_->deliver(batch_builder{}.tokens(s, {i}, static_cast<std::uint32_t>(i + 1)).take());
  }
  client_->pump([] { return false; }, 50ms);
  client_->window_update(id, 1 << 20);
  front_->deliver(batch_builder{}.tokens(s, {50}, 51, 0, finish_reason::length).take());
  const auto got = responses(client_->wait(id));
  std::vector<std::uint32_t> all;
  std::size_t chunks = 0;
  for (const auto& r : got) {
    const auto more = ids(r.chunk().token_ids());
    all.insert(all.end(), more.begin(), more.end());
    chunks += r.has_chunk() ? 1 : 0;
  }
  EXPECT_EQ(all, ids(got.back().complete().output_ids()));
  EXPECT_EQ(all.size(), 51U);
  EXPECT_LE(chunks, 3U);
}

TEST_F(scheduler_front_test, an_outcome_ends_the_stream_with_its_status_behind_the_tokens) {
  start();
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  front_->deliver(batch_builder{}
                      .tokens(s, {1}, 1)
                      .outcome(s, {outcome_kind::failed, failure::rank_lost, "rank decode/3 was lost", 0})
                      .take());
  const auto& in = client_->wait(id);
  EXPECT_EQ(responses(in).size(), 1U);
  EXPECT_EQ(in.status(), 14);
  EXPECT_EQ(in.message(), "rank_lost: rank decode/3 was lost");
  front_->deliver(batch_builder{}.tokens(s, {2}, 2).take());
  EXPECT_TRUE(intake_.cancels(1, 50ms).empty());
  EXPECT_EQ(front_->counters().events_late, 1U);
}

TEST_F(scheduler_front_test, a_refusal_is_trailers_only) {
  start();
  const auto id = generate(request_of("r"));
  front_->deliver(
      batch_builder{}
          .outcome(stream(0), {outcome_kind::refused, failure::duplicate_rid, "request_id: r is in flight", 0})
          .take());
  const auto& in = client_->wait(id);
  EXPECT_EQ(in.headers.at("grpc-status"), "6");
  EXPECT_EQ(in.headers.at("grpc-message"), "duplicate_rid: request_id: r is in flight");
}

TEST_F(scheduler_front_test, events_that_make_no_sense_are_counted_and_dropped) {
  start();
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  auto outside = batch_builder{}.tokens(s, {1}, 1).take();
  outside.events[0].token_count = 1000;
  front_->deliver(std::move(outside));
  front_->deliver(batch_builder{}.tokens(s, {1}, 1, 7).take());
  front_->deliver(batch_builder{}.tokens(12345, {1}, 1).take());
  front_->deliver(batch_builder{}.tokens(0, {1}, 1).take());
  front_->deliver(batch_builder{}.tokens(s, {9}, 1, 0, finish_reason::stop).take());
  EXPECT_EQ(ids(responses(client_->wait(id)).back().complete().output_ids()), std::vector<std::uint32_t>{9});
  EXPECT_EQ(front_->counters().events_bad, 2U);
  EXPECT_EQ(front_->counters().events_late, 2U);
}

TEST_F(scheduler_front_test, a_bad_request_ends_alone_and_never_reaches_the_node) {
  start();
  auto request = request_of("");
  const auto& in = client_->wait(generate(request));
  EXPECT_EQ(in.status(), 3);
  EXPECT_EQ(in.message(), "request_id: is required");
  const auto& garbage = client_->wait(client_->open(path("Generate"), framed("\xff\xff\xff")));
  EXPECT_EQ(garbage.status(), 3);
  EXPECT_EQ(garbage.message(), "GenerateRequest: cannot be decoded");
  const auto& not_utf8 = client_->wait(client_->open(path("Generate"), framed("\x0a\x02\xff\xfe")));
  EXPECT_EQ(not_utf8.status(), 3);
  EXPECT_EQ(not_utf8.message(), "request_id: is not UTF-8");
  auto stop = request_of("r").SerializeAsString();
  stop += std::string("\x22\x04\x4a\x02\xff\xfe", 6); // sampling_params { stop: "\xff\xfe" }
  EXPECT_EQ(client_->wait(client_->open(path("Generate"), framed(stop))).message(),
            "SamplingParams.stop: is not UTF-8");
  EXPECT_EQ(intake_.submits(), 0U);
  EXPECT_EQ(front_->counters().invalid, 4U);
}

// --- cancels
// ----------------------------------------------------------------------------------------------------------

TEST_F(scheduler_front_test, a_cancelled_stream_is_cancelled_at_the_node_exactly_once) {
  start();
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  front_->deliver(batch_builder{}.tokens(s, {1}, 1).take());
  ASSERT_TRUE(client_->pump([&] { return client_->of(id).messages().size() == 1; }));
  client_->reset(id);
  client_->pump([] { return false; }, 20ms);
  const auto cancels = intake_.cancels(2, 50ms);
  ASSERT_EQ(cancels.size(), 1U);
  EXPECT_EQ(cancels[0], std::make_pair(s, failure::client_cancelled));
}

TEST_F(scheduler_front_test, a_disconnect_cancels_every_stream_of_the_connection) {
  start();
  generate(request_of("a"));
  generate(request_of("b"));
  stream(1);
  client_.reset();
  const auto cancels = intake_.cancels(2);
  ASSERT_EQ(cancels.size(), 2U);
  EXPECT_EQ(cancels[0].second, failure::client_cancelled);
}

TEST_F(scheduler_front_test, a_priority_in_the_metadata_reaches_the_node_and_a_wrong_one_is_refused_by_name) {
  start();
  generate(request_of("plain"));
  generate(request_of("high"), {{"rankwise-priority", "8"}});
  generate(request_of("low"), {{"rankwise-priority", "-8"}});
  EXPECT_EQ(intake_.request(0).request->priority, 0);
  EXPECT_EQ(intake_.request(1).request->priority, 8);
  EXPECT_EQ(intake_.request(2).request->priority, -8);
  for (const char* wrong : {"9", "-9", "", "high", "1.5", "99999999999"}) {
    const auto& in = client_->wait(generate(request_of("r"), {{"rankwise-priority", wrong}}));
    EXPECT_EQ(in.status(), 3) << wrong;
    EXPECT_NE(in.message().find("rankwise-priority: \"" + std::string{wrong} + "\""), std::string::npos)
        << in.message();
  }
  for (const char* wrong : {"0", "-5", "soon", "86400001"}) {
    const auto& in = client_->wait(generate(request_of("r"), {{"rankwise-first-token-ms", wrong}}));
    EXPECT_EQ(in.status(), 3) << wrong;
    EXPECT_NE(in.message().find("rankwise-first-token-ms: \"" + std::string{wrong} + "\""), std::string::npos);
  }
  generate(request_of("last"), {{"rankwise-first-token-ms", "250"}});
  EXPECT_EQ(intake_.request(3).request->rid, "last");
  ASSERT_TRUE(intake_.request(3).request->first_token_by);
  EXPECT_NEAR(core::to_seconds(*intake_.request(3).request->first_token_by - intake_.request(3).request->received_at),
              0.25, 0.01);
  EXPECT_FALSE(intake_.request(0).request->first_token_by);
}

TEST_F(scheduler_front_test, a_deadline_goes_with_the_request_and_ends_the_call) {
  start();
  const auto before = clock_.now();
  const auto id = generate(request_of("r"), {{"grpc-timeout", "150m"}});
  const auto seen = intake_.request(0);
  ASSERT_NE(seen.request, nullptr);
  ASSERT_TRUE(seen.request->deadline);
  EXPECT_GE(*seen.request->deadline, before + 100ms);
  EXPECT_LE(*seen.request->deadline, clock_.now() + 150ms);
  EXPECT_EQ(client_->wait(id).status(), 4);
  const auto cancels = intake_.cancels(1);
  ASSERT_EQ(cancels.size(), 1U);
  EXPECT_EQ(cancels[0].second, failure::deadline_exceeded);
}

TEST_F(scheduler_front_test, a_client_that_does_not_read_its_stream_is_ended_as_slow) {
  front_options options;
  options.tokens_unsent_max = 1000;
  start(options);
  client_ = std::make_unique<raw_client>(front_->port(), client_settings{0, false});
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  for (std::uint32_t i = 0; i < 30; ++i) {
    front_->deliver(batch_builder{}.tokens(s, std::vector<std::int32_t>(100, 7), (i + 1) * 100).take());
  }
  EXPECT_TRUE(client_->wait(id).closed);
  const auto cancels = intake_.cancels(2, 50ms);
  ASSERT_EQ(cancels.size(), 1U);
  EXPECT_EQ(cancels[0].second, failure::slow_client);
  EXPECT_EQ(front_->counters().slow_clients, 1U);
}

TEST_F(scheduler_front_test, a_stream_whose_client_takes_nothing_for_too_long_is_ended_as_slow_and_the_others_go_on) {
  front_options options;
  options.server.write_stall_max = 300ms;
  start(options);
  client_ = std::make_unique<raw_client>(front_->port(), client_settings{0, false});
  raw_client other{front_->port()};
  const auto shut = generate(request_of("shut"));
  const auto shut_stream = stream(0);
  const auto open = generate(request_of("open"));
  const auto open_stream = stream(1);
  client_->window_update(open, 60'000);
  client_->flush();
  const auto elsewhere = other.open(path("Generate"), framed(request_of("elsewhere").SerializeAsString()));
  other.flush();
  const auto elsewhere_stream = intake_.request(2).stream;
  std::uint32_t count = 0;
  while (!client_->of(shut).closed && count < 1000) {
    ++count;
    front_->deliver(batch_builder{}
                        .tokens(shut_stream, {7}, count)
                        .tokens(open_stream, {7}, count)
                        .tokens(elsewhere_stream, {7}, count)
                        .take());
    client_->pump([&] { return client_->of(shut).closed; }, 5ms);
  }
  EXPECT_EQ(client_->of(shut).reset_code, static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_EQ(intake_.cancels(1).at(0), std::pair(shut_stream, failure::slow_client));
  EXPECT_EQ(front_->counters().slow_clients, 1U);
  front_->deliver(batch_builder{}
                      .tokens(open_stream, {}, count, 0, finish_reason::length)
                      .tokens(elsewhere_stream, {}, count, 0, finish_reason::length)
                      .take());
  EXPECT_EQ(client_->wait(open).status(), 0);
  EXPECT_EQ(other.wait(elsewhere).status(), 0);
  EXPECT_EQ(responses(client_->of(open)).back().complete().output_ids_size(), static_cast<int>(count));
  EXPECT_EQ(responses(other.of(elsewhere)).back().complete().output_ids_size(), static_cast<int>(count));
}

TEST_F(scheduler_front_test, abort_is_passed_on_and_always_succeeds) {
  start();
  pb::AbortRequest request;
  request.set_request_id("whoever");
  request.set_reason("Stream dropped");
  EXPECT_TRUE(unary<pb::AbortResponse>(path("Abort"), request).success());
  EXPECT_TRUE(unary<pb::AbortResponse>(path("Abort"), request).success());
  EXPECT_EQ(intake_.aborts(), (std::vector<std::string>{"whoever", "whoever"}));
}

TEST_F(scheduler_front_test, when_a_request_manager_is_gone_its_streams_end_and_those_of_others_go_on) {
  start();
  intake_.set_owner(7);
  const auto one = generate(request_of("a"));
  const auto s = stream(0);
  intake_.set_owner(8);
  const auto two = generate(request_of("b"));
  const auto other = stream(1);
  front_->deliver(batch_builder{}.tokens(s, {1}, 1).take());
  front_->fail_owner(7, {outcome_kind::failed, failure::request_manager_restarted, "restarted", 0});
  EXPECT_EQ(client_->wait(one).status(), 14);
  EXPECT_EQ(client_->wait(one).message(), "request_manager_restarted: restarted");
  EXPECT_EQ(responses(client_->of(one)).size(), 1U) << "what came before is delivered";
  front_->deliver(batch_builder{}.tokens(other, {1}, 1, 0, finish_reason::stop).take());
  EXPECT_EQ(client_->wait(two).status(), 0);
}

TEST_F(scheduler_front_test, a_stream_of_which_a_batch_never_arrived_ends_with_an_error_and_is_never_short) {
  start();
  const auto id = generate(request_of("a"));
  const auto s = stream(0);
  front_->deliver(batch_builder{}.tokens(s, {1, 2}, 2).take());
  front_->deliver(batch_builder{}.tokens(s, {5}, 5, 0, finish_reason::stop).take()); // 3 and 4 never came
  EXPECT_EQ(client_->wait(id).status(), 14);
  EXPECT_EQ(client_->wait(id).message(), "tokens_lost: 2 tokens never arrived here");
  ASSERT_EQ(intake_.cancels(1).size(), 1U);
  EXPECT_EQ(intake_.cancels(1)[0].second, failure::tokens_lost);
  EXPECT_EQ(front_->counters().events_behind_a_gap, 1U);
}

TEST_F(scheduler_front_test, a_cancel_goes_to_the_owner_of_the_request) {
  start();
  intake_.set_owner(7);
  generate(request_of("a"));
  stream(0);
  intake_.set_owner(8);
  client_.reset(); // its connection with it
  ASSERT_EQ(intake_.cancels(1).size(), 1U);
  EXPECT_EQ(intake_.cancelled_at(), std::vector<core::owner_id>{7});
}

TEST_F(scheduler_front_test, a_flood_from_the_node_ends_streams_instead_of_growing) {
  front_options options;
  options.tokens_queued_max = 1000;
  start(options);
  const auto id = generate(request_of("r"));
  const auto s = stream(0);
  front_->deliver(batch_builder{}.tokens(s, std::vector<std::int32_t>(2000, 7), 2000).take());
  EXPECT_EQ(client_->wait(id).status(), 8);
  EXPECT_EQ(intake_.cancels(1).size(), 1U);
  EXPECT_EQ(front_->counters().queue_overflows, 1U);
}

// --- the other calls
// --------------------------------------------------------------------------------------------------

TEST_F(scheduler_front_test, loads_are_those_of_the_ranks) {
  start();
  std::vector<core::rank_load> loads;
  for (std::uint16_t r = 0; r < 4; ++r) {
    loads.push_back({{0, r}, r + 1U, 2U * r, 1000U * r, 10'000, 8, 0.1});
  }
  loads.push_back({{1, 0}, 77, 0, 0, 0, 0, 0.1}); // of another pool
  intake_.set_loads(loads);
  auto all = unary<pb::GetLoadsResponse>(path("GetLoads"), pb::GetLoadsRequest{});
  ASSERT_EQ(all.loads_size(), 4);
  EXPECT_EQ(all.dp_rank_count(), 4);
  EXPECT_EQ(all.version(), "0.5.23");
  const auto& three = all.loads(3);
  EXPECT_EQ(three.dp_rank(), 3);
  EXPECT_EQ(three.num_running_reqs(), 4);
  EXPECT_EQ(three.num_waiting_reqs(), 6);
  EXPECT_EQ(three.num_total_reqs(), 10);
  EXPECT_EQ(three.num_used_tokens(), 3000);
  EXPECT_EQ(three.max_total_num_tokens(), 10'000);
  EXPECT_DOUBLE_EQ(three.token_usage(), 0.3);
  EXPECT_DOUBLE_EQ(three.utilization(), 0.5);
  EXPECT_EQ(three.max_running_requests(), 8);
  EXPECT_EQ(three.queues().waiting(), 6);
  EXPECT_FALSE(three.has_disaggregation());
  EXPECT_EQ(all.aggregate().total_running_reqs(), 1 + 2 + 3 + 4);
  EXPECT_EQ(all.aggregate().total_waiting_reqs(), 2 + 4 + 6);
  EXPECT_EQ(all.aggregate().total_reqs(), 22);
  EXPECT_DOUBLE_EQ(all.aggregate().avg_token_usage(), (0.1 + 0.2 + 0.3) / 4);

  pb::GetLoadsRequest one;
  one.set_dp_rank(2);
  one.add_include("core");
  const auto filtered = unary<pb::GetLoadsResponse>(path("GetLoads"), one);
  ASSERT_EQ(filtered.loads_size(), 1);
  EXPECT_EQ(filtered.loads(0).dp_rank(), 2);
  EXPECT_FALSE(filtered.loads(0).has_queues());

  one.add_include("nonsense");
  const auto& in = client_->wait(client_->open(path("GetLoads"), framed(one.SerializeAsString())));
  EXPECT_EQ(in.status(), 3);
  EXPECT_EQ(in.message().find("include: nonsense"), 0U);
}

TEST_F(scheduler_front_test, server_info_tells_what_the_gateway_labels_a_worker_by) {
  front_options options;
  options.model.model_path = "/models/m";
  options.model.served_model_name = "m";
  start(options);
  const auto info = unary<pb::GetServerInfoResponse>(path("GetServerInfo"), pb::GetServerInfoRequest{});
  const auto& args = info.server_args().fields();
  EXPECT_EQ(args.at("dp_size").number_value(), 8);
  EXPECT_EQ(args.at("model_path").string_value(), "/models/m");
  EXPECT_EQ(args.at("served_model_name").string_value(), "m");
  EXPECT_EQ(args.at("disaggregation_mode").string_value(), "null");
  EXPECT_EQ(args.at("max_running_requests").number_value(), 32 * 8);
  EXPECT_EQ(info.scheduler_info().fields().at("max_total_num_tokens").number_value(), 80'000);
  EXPECT_EQ(info.active_requests(), 5);
  EXPECT_EQ(info.sglang_version(), "0.5.23");
  EXPECT_EQ(info.server_type(), "grpc");
  EXPECT_EQ(info.max_total_num_tokens(), 80'000);
  EXPECT_GE(info.uptime_seconds(), 0);
  EXPECT_GT(info.start_time().seconds(), 1'600'000'000);
}

TEST_F(scheduler_front_test, model_info_is_the_configured_one) {
  front_options options;
  options.model.model_path = "/models/m";
  options.model.eos_token_ids = {2, 3};
  options.model.vocab_size = 94;
  options.model.architectures = {"LlamaForCausalLM"};
  start(options);
  const auto info = unary<pb::GetModelInfoResponse>(path("GetModelInfo"), pb::GetModelInfoRequest{});
  EXPECT_EQ(info.model_path(), "/models/m");
  EXPECT_EQ(info.tokenizer_path(), "/models/m");
  EXPECT_EQ(info.served_model_name(), "/models/m");
  EXPECT_TRUE(info.is_generation());
  EXPECT_EQ(info.max_context_length(), 4096) << "as the ranks registered it";
  EXPECT_EQ(info.vocab_size(), 94);
  EXPECT_EQ(info.eos_token_ids_size(), 2);
  EXPECT_EQ(info.architectures(0), "LlamaForCausalLM");
}

TEST_F(scheduler_front_test, model_info_is_what_the_ranks_say_where_nothing_is_configured) {
  start(front_options{});
  const auto told = [this] { return unary<pb::GetModelInfoResponse>(path("GetModelInfo"), pb::GetModelInfoRequest{}); };
  EXPECT_EQ(told().served_model_name(), "rankwise") << "nobody names it";
  auto node = intake_.info();
  node.model_name = "/models/of-the-ranks";
  intake_.set_info(node);
  EXPECT_EQ(told().served_model_name(), "/models/of-the-ranks");
  EXPECT_EQ(told().model_path(), "/models/of-the-ranks");
  EXPECT_EQ(told().tokenizer_path(), "/models/of-the-ranks");
}

TEST(model_naming, the_configuration_comes_first_and_the_ranks_second) {
  model_facts model;
  model.model_path = "/models/m";
  EXPECT_EQ(names_of(model, "").served_model_name, "/models/m");
  EXPECT_EQ(names_of(model, "m-of-the-ranks").served_model_name, "m-of-the-ranks");
  EXPECT_EQ(names_of(model, "m-of-the-ranks").tokenizer_path, "/models/m");
  model.served_model_name = "m";
  model.tokenizer_path = "/tokenizers/m";
  EXPECT_EQ(names_of(model, "m-of-the-ranks").served_model_name, "m");
  EXPECT_EQ(names_of(model, "m-of-the-ranks").tokenizer_path, "/tokenizers/m");
}

TEST(model_naming, a_gateway_without_a_tokenizer_is_warned_of_and_the_key_named) {
  model_facts model;
  for (const auto* registered : {"", "some-name", "/no/such/folder"}) {
    const auto warning = tokenizer_warning(model, registered);
    EXPECT_THAT(warning, ::testing::HasSubstr("503 tokenizer_load_failed"));
    EXPECT_THAT(warning, ::testing::HasSubstr("--model-path (model.model_path)"));
    EXPECT_THAT(warning, ::testing::HasSubstr(registered));
  }
  EXPECT_EQ(tokenizer_warning(model, "/tmp"), "") << "a folder that a gateway on this machine can read";
  model.tokenizer_path = "/elsewhere";
  EXPECT_EQ(tokenizer_warning(model, ""), "") << "whoever sets it knows";
}

TEST_F(scheduler_front_test, the_rest_of_the_service_is_unimplemented) {
  start();
  for (const auto* method : {"Embed", "FlushCache", "StartProfile", "StopProfile", "GetTokenizer", "SubscribeKvEvents",
                             "LoadLoRAAdapter", "UnloadLoRAAdapter", "ListLoadedLoRAAdapters", "NoSuchMethod"}) {
    EXPECT_EQ(client_->wait(client_->open(path(method), framed(""))).status(), 12) << method;
  }
}

TEST_F(scheduler_front_test, health_is_what_the_node_says_and_no_more) {
  start();
  EXPECT_TRUE(unary<pb::HealthCheckResponse>(path("HealthCheck"), pb::HealthCheckRequest{}).healthy());
  core::node_info node;
  node.not_ready_reason = "3 of 8 ranks joined";
  intake_.set_info(node);
  const auto not_ready = unary<pb::HealthCheckResponse>(path("HealthCheck"), pb::HealthCheckRequest{});
  EXPECT_FALSE(not_ready.healthy());
  EXPECT_EQ(not_ready.message(), "3 of 8 ranks joined");
}

constexpr auto serving = ::grpc::health::v1::HealthCheckResponse::SERVING;
constexpr auto not_serving = ::grpc::health::v1::HealthCheckResponse::NOT_SERVING;

TEST_F(scheduler_front_test, the_standard_health_check_knows_the_service_and_the_server) {
  start();
  ::grpc::health::v1::HealthCheckRequest request;
  const std::string check = "/grpc.health.v1.Health/Check";
  EXPECT_EQ(unary<::grpc::health::v1::HealthCheckResponse>(check, request).status(), serving);
  request.set_service("sglang.grpc.scheduler.SglangScheduler");
  EXPECT_EQ(unary<::grpc::health::v1::HealthCheckResponse>(check, request).status(), serving);
  intake_.set_info({});
  EXPECT_EQ(unary<::grpc::health::v1::HealthCheckResponse>(check, request).status(), not_serving);
  request.set_service("nobody");
  EXPECT_EQ(client_->wait(client_->open(check, framed(request.SerializeAsString()))).status(), 5);
}

TEST_F(scheduler_front_test, a_health_watch_is_told_of_each_change) {
  start();
  const auto id = client_->open("/grpc.health.v1.Health/Watch", framed(""));
  const auto statuses = [&] {
    std::vector<int> out;
    for (const auto& bytes : client_->of(id).messages()) {
      ::grpc::health::v1::HealthCheckResponse r;
      EXPECT_TRUE(r.ParseFromString(bytes));
      out.push_back(r.status());
    }
    return out;
  };
  ASSERT_TRUE(client_->pump([&] { return statuses() == std::vector<int>{serving}; }));
  intake_.set_info({});
  ASSERT_TRUE(client_->pump([&] { return statuses() == (std::vector<int>{serving, not_serving}); }));
  core::node_info ready;
  ready.ready = true;
  intake_.set_info(ready);
  ASSERT_TRUE(client_->pump([&] { return statuses() == (std::vector<int>{serving, not_serving, serving}); }));
  front_->begin_drain();
  ASSERT_TRUE(client_->pump([&] { return statuses().size() == 4 && statuses().back() == not_serving; }, 400ms))
      << "a drain is told at once";
}

TEST_F(scheduler_front_test, reflection_lists_the_services_and_gives_their_files) {
  start();
  ::grpc::reflection::v1::ServerReflectionRequest list;
  list.set_list_services("");
  ::grpc::reflection::v1::ServerReflectionRequest symbol;
  symbol.set_file_containing_symbol("sglang.grpc.scheduler.SglangScheduler");
  ::grpc::reflection::v1::ServerReflectionRequest unknown;
  unknown.set_file_containing_symbol("no.such.thing");
  const auto id = client_->open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                framed(list.SerializeAsString()) + framed(symbol.SerializeAsString()) +
                                    framed(unknown.SerializeAsString()));
  const auto messages = client_->wait(id).messages();
  ASSERT_EQ(messages.size(), 3U);
  ::grpc::reflection::v1::ServerReflectionResponse answer;
  ASSERT_TRUE(answer.ParseFromString(messages[0]));
  EXPECT_EQ(answer.list_services_response().service_size(), 4);
  ASSERT_TRUE(answer.ParseFromString(messages[1]));
  EXPECT_GE(answer.file_descriptor_response().file_descriptor_proto_size(), 4) << "with what it imports";
  ASSERT_TRUE(answer.ParseFromString(messages[2]));
  EXPECT_EQ(answer.error_response().error_code(), 5);
}

// --- drain and stop
// ---------------------------------------------------------------------------------------------------

TEST_F(scheduler_front_test, a_draining_front_refuses_new_requests_and_finishes_open_ones) {
  start();
  const auto open = generate(request_of("open"));
  const auto s = stream(0);
  front_->begin_drain();
  const auto& refused = client_->wait(generate(request_of("late")));
  EXPECT_EQ(refused.status(), 14);
  EXPECT_EQ(refused.message().find("shutting_down"), 0U);
  EXPECT_FALSE(unary<pb::HealthCheckResponse>(path("HealthCheck"), pb::HealthCheckRequest{}).healthy());
  std::thread drainer{[&] { EXPECT_TRUE(front_->drain(5s)); }};
  front_->deliver(batch_builder{}.tokens(s, {1}, 1, 0, finish_reason::stop).take());
  EXPECT_EQ(client_->wait(open).status(), 0);
  drainer.join();
  EXPECT_TRUE(intake_.cancels(1, 0ms).empty());
}

TEST_F(scheduler_front_test, stop_cancels_open_streams_as_shutting_down_and_late_batches_do_no_harm) {
  start();
  generate(request_of("r"));
  const auto s = stream(0);
  front_->stop();
  const auto cancels = intake_.cancels(1);
  ASSERT_EQ(cancels.size(), 1U);
  EXPECT_EQ(cancels[0], std::make_pair(s, failure::shutting_down));
  front_->deliver(batch_builder{}.tokens(s, {1}, 1).take());
  front_->fail_owner(1, {});
  front_.reset();
}

} // namespace
} // namespace rankwise::io::front
