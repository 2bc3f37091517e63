// The other side of the wire is grpc++ here, so that our reading of the protocol is not the only witness.

#include "fake_intake.hpp"
#include "io/front/scheduler_front.hpp"
#include "io/front/sglang_scheduler.pb.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <gtest/gtest.h>

#include <thread>

// c-ares, below grpc++, forgets ten bytes of its own.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares";
}

namespace rankwise::io::front {
namespace {

namespace pb = ::sglang::grpc::scheduler;
using namespace std::chrono_literals;
using testing::batch_builder;

class real_clock final : public core::clock {
 public:
  [[nodiscard]] core::timestamp now() const noexcept override { return std::chrono::steady_clock::now(); }
};

::grpc::ByteBuffer to_buffer(const google::protobuf::Message& message) {
  const ::grpc::Slice slice{message.SerializeAsString()};
  return {&slice, 1};
}

/// One Generate call, step by step.
class generate_client {
 public:
  generate_client(const std::shared_ptr<::grpc::Channel>& channel, const pb::GenerateRequest& request,
                  std::chrono::milliseconds timeout = 10s)
      : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
    call_ = stub_.PrepareCall(&context_, "/sglang.grpc.scheduler.SglangScheduler/Generate", &queue_);
    call_->StartCall(this);
    step();
    call_->WriteLast(to_buffer(request), {}, this);
    step();
  }
  ~generate_client() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool read(pb::GenerateResponse& out) {
    ::grpc::ByteBuffer bytes;
    call_->Read(&bytes, this);
    if (!step()) {
      return false;
    }
    ::grpc::Slice slice;
    return bytes.DumpToSingleSlice(&slice).ok() && out.ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  }
  ::grpc::Status finish() {
    ::grpc::Status status;
    call_->Finish(&status, this);
    step();
    return status;
  }
  void cancel() { context_.TryCancel(); }

 private:
  bool step() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  ::grpc::GenericStub stub_;
  ::grpc::CompletionQueue queue_;
  ::grpc::ClientContext context_;
  std::unique_ptr<::grpc::GenericClientAsyncReaderWriter> call_;
};

class grpcpp_client : public ::testing::Test {
 protected:
  void SetUp() override {
    core::node_info node;
    node.ready = true;
    intake_.set_info(node);
    ASSERT_TRUE(front_.start());
    ::grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    channel_ = ::grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(front_.port()),
                                           ::grpc::InsecureChannelCredentials(), arguments);
  }

  static pb::GenerateRequest request(std::string rid, int prompt_tokens = 1) {
    pb::GenerateRequest out;
    out.set_request_id(std::move(rid));
    for (int i = 0; i < prompt_tokens; ++i) {
      out.mutable_tokenized()->add_input_ids(static_cast<std::uint32_t>(i));
    }
    out.mutable_sampling_params()->set_max_new_tokens(10);
    out.set_stream(true);
    return out;
  }

  testing::fake_intake intake_;
  real_clock clock_;
  scheduler_front front_{{}, intake_, clock_};
  std::shared_ptr<::grpc::Channel> channel_;
};

TEST_F(grpcpp_client, streams_a_request_to_its_end) {
  generate_client client{channel_, request("r")};
  const auto stream = intake_.request(0).stream;
  pb::GenerateResponse got;
  for (std::int32_t i = 0; i < 5; ++i) {
    front_.deliver(batch_builder{}.tokens(stream, {i}, static_cast<std::uint32_t>(i + 1)).take());
    ASSERT_TRUE(client.read(got));
    EXPECT_EQ(got.chunk().token_ids(0), static_cast<std::uint32_t>(i));
  }
  front_.deliver(batch_builder{}.tokens(stream, {}, 5, 0, core::finish_reason::length).take());
  ASSERT_TRUE(client.read(got));
  EXPECT_EQ(got.complete().output_ids_size(), 5);
  EXPECT_FALSE(client.read(got));
  EXPECT_TRUE(client.finish().ok());
}

TEST_F(grpcpp_client, sees_status_and_text_of_an_error) {
  generate_client client{channel_, request("r")};
  front_.deliver(batch_builder{}
                     .outcome(intake_.request(0).stream,
                              {core::outcome_kind::refused, core::failure::rank_queue_full, "100% of rank é", 0})
                     .take());
  pb::GenerateResponse got;
  EXPECT_FALSE(client.read(got));
  const auto status = client.finish();
  EXPECT_EQ(status.error_code(), ::grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "rank_queue_full: 100% of rank é");
}

TEST_F(grpcpp_client, cancels_and_runs_out_of_time) {
  generate_client cancelled{channel_, request("a")};
  generate_client late{channel_, request("b"), 100ms};
  intake_.request(1);
  cancelled.cancel();
  EXPECT_EQ(cancelled.finish().error_code(), ::grpc::StatusCode::CANCELLED);
  EXPECT_EQ(late.finish().error_code(), ::grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(intake_.cancels(3, 100ms).size(), 2U);
}

TEST_F(grpcpp_client, sends_a_prompt_of_a_million_tokens) {
  generate_client client{channel_, request("big", 1'000'000)};
  const auto seen = intake_.request(0);
  ASSERT_NE(seen.request, nullptr);
  EXPECT_EQ(seen.request->input_ids.size(), 1'000'000U);
  EXPECT_EQ(seen.request->input_ids.back(), 999'999);
  front_.deliver(batch_builder{}.tokens(seen.stream, {1}, 1, 0, core::finish_reason::stop).take());
  pb::GenerateResponse got;
  EXPECT_TRUE(client.read(got));
}

TEST_F(grpcpp_client, is_told_unimplemented_when_it_compresses_and_goes_on_without) {
  auto large = request("compressed", 5'000);
  ::grpc::GenericStub stub{channel_};
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    ::grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 5s);
    context.set_compression_algorithm(algorithm);
    ::grpc::CompletionQueue queue;
    ::grpc::ByteBuffer answer;
    ::grpc::Status status;
    const auto call =
        stub.PrepareUnaryCall(&context, "/sglang.grpc.scheduler.SglangScheduler/Generate", to_buffer(large), &queue);
    call->StartCall();
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), ::grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    const auto& headers = context.GetServerTrailingMetadata(); // trailers only
    const auto told = headers.find("grpc-accept-encoding");
    EXPECT_TRUE(told == headers.end() || told->second == "identity"); // grpc++ keeps it to itself
  }
  EXPECT_EQ(intake_.submits(), 0U);
  generate_client plain{channel_, request("plain", 5'000)};
  EXPECT_NE(intake_.request(0).request, nullptr);
}

// Twenty keepalives in the time in which the default rule allows one.
TEST_F(grpcpp_client, is_ended_as_too_many_pings_only_when_it_keeps_alive_too_often) {
  const auto keepalive_channel = [](std::uint16_t port, int every_ms) {
    ::grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, every_ms);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    return ::grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), ::grpc::InsecureChannelCredentials(),
                                       arguments);
  };
  front_options options;
  options.server.floods.ping_interval_min = 80ms;
  scheduler_front patient{options, intake_, clock_};
  ASSERT_TRUE(patient.start());
  const auto pings = static_cast<std::size_t>(grpc::flood_kind::pings);
  generate_client slow{keepalive_channel(patient.port(), 100), request("slow")};
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(patient.counters().server.floods[pings], 0U);
  const auto stream = intake_.request(0).stream;
  patient.deliver(batch_builder{}.tokens(stream, {}, 0, 0, core::finish_reason::length).take());
  pb::GenerateResponse got;
  EXPECT_TRUE(slow.read(got));
  EXPECT_FALSE(slow.read(got));
  EXPECT_TRUE(slow.finish().ok());

  generate_client hasty{keepalive_channel(front_.port(), 100), request("hasty")};
  const auto status = hasty.finish();
  EXPECT_EQ(status.error_code(), ::grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(front_.counters().server.floods[pings], 1U);
}

TEST_F(grpcpp_client, keeps_its_streams_through_a_drain) {
  generate_client client{channel_, request("r")};
  const auto stream = intake_.request(0).stream;
  std::thread drainer{[&] { EXPECT_TRUE(front_.drain(5s)); }};
  std::this_thread::sleep_for(50ms);
  front_.deliver(batch_builder{}.tokens(stream, {1}, 1, 0, core::finish_reason::stop).take());
  pb::GenerateResponse got;
  EXPECT_TRUE(client.read(got));
  EXPECT_TRUE(client.read(got));
  EXPECT_TRUE(got.has_complete());
  EXPECT_FALSE(client.read(got));
  EXPECT_TRUE(client.finish().ok());
  drainer.join();
}

} // namespace
} // namespace rankwise::io::front
