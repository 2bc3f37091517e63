// grpc++ as a client over TLS: what it sees when the front wants TLS, and when it wants a certificate of its own.

#include "fake_intake.hpp"
#include "io/front/scheduler_front.hpp"
#include "io/front/sglang_scheduler.pb.h"
#include "test_certificates.hpp"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <gtest/gtest.h>

#include <thread>

namespace rankwise::io::front {
namespace {

namespace pb = ::sglang::grpc::scheduler;
using namespace std::chrono_literals;
using testing::test_authority;
using testing::text_of_file;

class real_clock final : public core::clock {
 public:
  [[nodiscard]] core::timestamp now() const noexcept override { return std::chrono::steady_clock::now(); }
};

/// One unary exchange of bytes by a generic stub; the status in which it ended.
::grpc::Status call_once(const std::shared_ptr<::grpc::Channel>& channel, const std::string& method,
                         const std::string& bytes, std::chrono::milliseconds limit) {
  ::grpc::GenericStub stub{channel};
  ::grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  ::grpc::CompletionQueue queue;
  const ::grpc::Slice slice{bytes};
  const ::grpc::ByteBuffer request{&slice, 1};
  ::grpc::ByteBuffer response;
  ::grpc::Status status;
  const auto call =
      stub.PrepareUnaryCall(&context, "/sglang.grpc.scheduler.SglangScheduler/" + method, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

class grpcpp_tls_client : public ::testing::Test {
 protected:
  void start(bool mutual) {
    const auto files = authority_.issue("server");
    front_options options;
    options.server.tls = {files.certificate, files.key, mutual ? authority_.ca_file() : ""};
    core::node_info node;
    node.ready = true;
    intake_.set_info(node);
    front_ = std::make_unique<scheduler_front>(options, intake_, clock_);
    const auto started = front_->start();
    ASSERT_TRUE(started) << started.error();
  }

  [[nodiscard]] std::shared_ptr<::grpc::Channel>
  channel(const std::shared_ptr<::grpc::ChannelCredentials>& with) const {
    ::grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1); // no connection of another case
    return ::grpc::CreateCustomChannel("localhost:" + std::to_string(front_->port()), with, arguments);
  }
  [[nodiscard]] ::grpc::Status health(const std::shared_ptr<::grpc::ChannelCredentials>& with,
                                      std::chrono::milliseconds limit = 5s) const {
    return call_once(channel(with), "HealthCheck", "", limit);
  }
  [[nodiscard]] static std::shared_ptr<::grpc::ChannelCredentials> trusting(const test_authority& authority) {
    ::grpc::SslCredentialsOptions options;
    options.pem_root_certs = text_of_file(authority.ca_file());
    return ::grpc::SslCredentials(options);
  }
  [[nodiscard]] std::shared_ptr<::grpc::ChannelCredentials> showing(const test_authority& issuer) const {
    const auto files = issuer.issue("client");
    ::grpc::SslCredentialsOptions options;
    options.pem_root_certs = text_of_file(authority_.ca_file());
    options.pem_cert_chain = text_of_file(files.certificate);
    options.pem_private_key = text_of_file(files.key);
    return ::grpc::SslCredentials(options);
  }

  test_authority authority_{"authority"};
  test_authority stranger_{"stranger"};
  testing::fake_intake intake_;
  real_clock clock_;
  std::unique_ptr<scheduler_front> front_;
};

TEST_F(grpcpp_tls_client, is_served_when_it_trusts_the_authority) {
  start(false);
  const auto status = health(trusting(authority_));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(grpcpp_tls_client, does_not_talk_to_a_server_of_another_authority) {
  start(false);
  EXPECT_EQ(health(trusting(stranger_), 1s).error_code(), ::grpc::StatusCode::UNAVAILABLE);
  const auto until = std::chrono::steady_clock::now() + 2s;
  while (front_->counters().server.tls_handshakes_failed == 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_GT(front_->counters().server.tls_handshakes_failed, 0U) << "it told us so by an alert";
}

TEST_F(grpcpp_tls_client, without_tls_is_refused) {
  start(false);
  EXPECT_FALSE(health(::grpc::InsecureChannelCredentials(), 1s).ok());
  EXPECT_TRUE(health(trusting(authority_)).ok());
}

TEST_F(grpcpp_tls_client, needs_a_certificate_of_the_right_authority_for_mutual_tls) {
  start(true);
  EXPECT_FALSE(health(trusting(authority_), 1s).ok()) << "none";
  EXPECT_FALSE(health(showing(stranger_), 1s).ok()) << "somebody else's";
  const auto status = health(showing(authority_));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(grpcpp_tls_client, sends_a_prompt_of_a_million_tokens_and_reads_as_many) {
  start(false);
  pb::GenerateRequest request;
  request.set_request_id("big");
  for (std::uint32_t i = 0; i < 1'000'000; ++i) {
    request.mutable_tokenized()->add_input_ids(i);
  }
  request.mutable_sampling_params()->set_max_new_tokens(1'000'000);
  ::grpc::GenericStub stub{channel(trusting(authority_))};
  ::grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 20s);
  ::grpc::CompletionQueue queue;
  const ::grpc::Slice slice{request.SerializeAsString()};
  const ::grpc::ByteBuffer bytes{&slice, 1};
  ::grpc::ByteBuffer answer;
  ::grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, "/sglang.grpc.scheduler.SglangScheduler/Generate", bytes, &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  std::thread engine{[this] { // beside this thread, because a call moves on only while its queue is asked
    const auto seen = intake_.request(0);
    ASSERT_NE(seen.request, nullptr);
    EXPECT_EQ(seen.request->input_ids.size(), 1'000'000U);
    EXPECT_EQ(seen.request->input_ids.back(), 999'999);
    // About 2 MB back, as one message: many TLS records.
    std::vector<std::int32_t> tokens(700'000, 1000);
    tokens.back() = 4711;
    front_->deliver(testing::batch_builder{}.tokens(seen.stream, tokens, 700'000, 0, core::finish_reason::stop).take());
  }};
  void* tag = nullptr;
  bool ok = false;
  const bool ended = queue.Next(&tag, &ok);
  engine.join();
  ASSERT_TRUE(ended);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ::grpc::Slice whole;
  ASSERT_TRUE(answer.DumpToSingleSlice(&whole).ok());
  pb::GenerateResponse got;
  ASSERT_TRUE(got.ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
  ASSERT_EQ(got.complete().output_ids_size(), 700'000);
  EXPECT_EQ(got.complete().output_ids(699'999), 4711U);
  EXPECT_EQ(front_->counters().server.tls_handshakes, 1U);
}

} // namespace
} // namespace rankwise::io::front
