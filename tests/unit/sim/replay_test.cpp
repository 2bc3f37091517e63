#include "app/replay/replay_client.hpp"
#include "app/replay/replay_command.hpp"
#include "io/front/sglang_scheduler.grpc.pb.h"
#include "sim/built_in_workloads.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <algorithm>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>

namespace rankwise::app {
namespace {

namespace proto = ::sglang::grpc::scheduler;

TEST(replay_result_test, percentiles_are_exact_nearest_ranks) {
  latency_samples samples;
  EXPECT_EQ(samples.percentile(50), 0);
  for (int i = 100; i >= 1; --i) {
    samples.add(i);
  }
  EXPECT_EQ(samples.percentile(50), 50);
  EXPECT_EQ(samples.percentile(99), 99);
  EXPECT_EQ(samples.percentile(100), 100);
  EXPECT_EQ(samples.percentile(0), 1);
  EXPECT_DOUBLE_EQ(samples.mean(), 50.5);
}

TEST(replay_result_test, ends_are_classified_by_the_name_in_front_of_the_message) {
  const auto is = [](const stream_outcome& outcome, core::outcome_kind kind, std::string_view reason) {
    return outcome.kind == kind && outcome.reason == reason;
  };
  EXPECT_TRUE(is(classify(14, "rank_lost: decode/3 died"), core::outcome_kind::failed, "rank_lost"));
  EXPECT_TRUE(
      is(classify(8, "requests_in_flight_max: 100 of 100"), core::outcome_kind::refused, "requests_in_flight_max"));
  EXPECT_TRUE(is(classify(1, "aborted_by_request"), core::outcome_kind::cancelled, "aborted_by_request"));
  EXPECT_TRUE(is(classify(14, "failed to connect to all addresses"), core::outcome_kind::failed, "grpc_unavailable"));
  EXPECT_TRUE(is(classify(99, ""), core::outcome_kind::failed, "grpc_unknown"));
}

TEST(replay_result_test, the_json_has_the_documented_shape) {
  replay_result result;
  result.completed = 3;
  result.failed = 1;
  result.refused = 2;
  result.lost = 1;
  result.failures["rank_lost"] = 1;
  result.tokens_delivered = 10;
  result.ttft.add(0.5);
  result.inter_token.add(0.25);
  const auto json = to_json(result);
  EXPECT_EQ(json.at("requests").at("accepted"), 5);
  EXPECT_EQ(json.at("requests").at("refused"), 2);
  EXPECT_EQ(json.at("failures").at("rank_lost"), 1);
  EXPECT_EQ(json.at("tokens").at("delivered"), 10);
  EXPECT_EQ(json.at("tokens").at("wrong"), 0);
  EXPECT_EQ(json.at("ttft_s").at("p99"), 0.5);
  EXPECT_EQ(json.at("inter_token_s").at("p50"), 0.25);
  EXPECT_TRUE(json.at("ranks").is_array() && json.at("actors").is_array());
  EXPECT_FALSE(result.holds());
}

TEST(replay_command_test, a_choice_of_workload_is_read_or_explained) {
  workload_choice choice;
  choice.limit = 7;
  EXPECT_EQ(choose_workload(choice)->requests.size(), 7U);
  choice.limit = 0;
  choice.duration_s = 5;
  choice.speed = 2;
  const auto timed = choose_workload(choice);
  EXPECT_NEAR(static_cast<double>(timed->requests.size()), 200, 50);
  EXPECT_LT(timed->span_s(), 5);
  choice.trace = "/no/such/trace";
  EXPECT_NE(choose_workload(choice).error().find("/no/such/trace"), std::string::npos);
}

TEST(replay_command_test, a_built_in_workload_is_chosen_by_name_and_a_closed_loop_has_no_duration) {
  workload_choice choice;
  choice.limit = 200;
  for (const auto name : sim::built_in_workload_names) {
    choice.workload = name;
    ASSERT_TRUE(choose_workload(choice)) << name;
    EXPECT_EQ(choose_workload(choice)->requests.size(), 200U) << name;
  }
  choice.workload = "giants";
  choice.giant_every = 20;
  const auto giants = choose_workload(choice);
  EXPECT_EQ(std::count_if(giants->requests.begin(), giants->requests.end(),
                          [](const auto& r) { return r.input_tokens == 100'000; }),
            10);
  choice.workload = "closed-loop";
  choice.clients = 13;
  choice.think_s = 0;
  const auto loop = choose_workload(choice);
  EXPECT_EQ(sim::request_followers(*loop).count(), 187U);
  EXPECT_EQ(loop->span_s(), 0) << "clients that do not think";
  choice.duration_s = 5;
  EXPECT_NE(choose_workload(choice).error().find("--duration"), std::string::npos);
  choice.workload = "heavy";
  EXPECT_NE(choose_workload(choice).error().find("--workload: \"heavy\""), std::string::npos);
}

/// What it answers hangs on the length of the prompt: `what` plus one.
class scripted_server final : public proto::SglangScheduler::Service {
 public:
  enum what : int { good, wrong_token, short_by_one, no_completion, named_failure, silent, merged, twice };

  scripted_server() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~scripted_server() override { server_->Shutdown(std::chrono::system_clock::now()); }
  [[nodiscard]] std::string target() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Generate(grpc::ServerContext* context, const proto::GenerateRequest* request,
                        grpc::ServerWriter<proto::GenerateResponse>* writer) override {
    const std::string& rid = request->request_id();
    const int script = request->tokenized().input_ids_size() - 1;
    EXPECT_TRUE(request->sampling_params().ignore_eos());
    if (script == named_failure) {
      return {grpc::StatusCode::UNAVAILABLE, "rank_lost: unified/3"};
    }
    const auto crc = wire::sglang::rid_crc32(rid);
    const std::uint32_t count = request->sampling_params().max_new_tokens() - (script == short_by_one ? 1 : 0);
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto token = wire::sglang::expected_token(crc, i);
      ids.push_back(static_cast<std::uint32_t>(script == wrong_token && i == 2 ? token + 1 : token));
    }
    const std::uint32_t step = script == merged ? 3 : 1;
    proto::GenerateResponse response;
    response.set_request_id(rid);
    for (std::uint32_t i = 0; i < count; i += step) {
      auto& chunk = *response.mutable_chunk();
      chunk.clear_token_ids();
      for (std::uint32_t k = i; k < std::min(i + step, count); ++k) {
        chunk.add_token_ids(ids[k]);
      }
      chunk.set_completion_tokens(std::min(i + step, count));
      writer->Write(response);
      if (script == twice && i == 0) {
        writer->Write(response);
      }
      while (script == silent && !context->IsCancelled()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      if (script == silent) {
        return grpc::Status::CANCELLED;
      }
    }
    if (script != no_completion) {
      auto& complete = *response.mutable_complete();
      complete.mutable_output_ids()->Add(ids.begin(), ids.end());
      complete.set_completion_tokens(count);
      complete.set_finish_reason("length");
      writer->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

constexpr std::uint32_t tokens_asked = 6;

replay_result play(const scripted_server& server, const std::vector<int>& scripts, replay_options options = {}) {
  sim::workload workload;
  for (const int script : scripts) {
    workload.requests.push_back({0, static_cast<std::uint32_t>(script) + 1, tokens_asked, {}});
  }
  options.target = server.target();
  options.silence_s = 0.3;
  return replay(workload, options);
}

class replay_client_test : public testing::Test {
 protected:
  scripted_server server_;
};

TEST_F(replay_client_test, good_streams_complete_with_every_token) {
  const auto result = play(server_, {scripted_server::good, scripted_server::good, scripted_server::merged});
  EXPECT_EQ(result.completed, 3U);
  EXPECT_EQ(result.tokens_delivered, 3U * tokens_asked);
  EXPECT_EQ(result.tokens_wrong, 0U) << result.first_wrong;
  EXPECT_EQ(result.ttft.count(), 3U);
  EXPECT_EQ(result.inter_token.count(),
            5U + 5U + 1U); // one gap per chunk after the first, however many tokens it brings
  EXPECT_TRUE(result.holds());
}

TEST_F(replay_client_test, a_wrong_missing_or_repeated_token_is_seen) {
  const auto wrong = play(server_, {scripted_server::wrong_token});
  EXPECT_EQ(wrong.completed, 1U);
  EXPECT_EQ(wrong.tokens_wrong, 2U); // in its chunk and in the completion
  EXPECT_NE(wrong.first_wrong.find("token 2 is"), std::string::npos);
  EXPECT_GT(play(server_, {scripted_server::short_by_one}).tokens_wrong, 0U);
  EXPECT_GT(play(server_, {scripted_server::twice}).tokens_wrong, 0U);
}

TEST_F(replay_client_test, every_end_has_its_place) {
  const auto result =
      play(server_, {scripted_server::good, scripted_server::named_failure, scripted_server::no_completion});
  EXPECT_EQ(result.completed, 1U);
  EXPECT_EQ(result.failed, 1U);
  EXPECT_EQ(result.failures.at("rank_lost"), 1U);
  EXPECT_EQ(result.lost, 1U);
  EXPECT_EQ(result.accepted(), 3U);
  EXPECT_FALSE(result.holds());
}

TEST_F(replay_client_test, a_stream_that_falls_silent_is_lost_after_the_limit) {
  const auto result = play(server_, {scripted_server::silent, scripted_server::good});
  EXPECT_EQ(result.lost, 1U);
  EXPECT_EQ(result.completed, 1U);
  EXPECT_GT(result.elapsed_s, 0.3);
  EXPECT_LT(result.elapsed_s, 5);
}

TEST_F(replay_client_test, a_deadline_cancels_and_is_no_loss) {
  replay_options options;
  options.deadline_s = 0.1;
  const auto result = play(server_, {scripted_server::silent}, options);
  EXPECT_EQ(result.cancelled, 1U);
  EXPECT_EQ(result.failures.at("deadline_exceeded"), 1U);
  EXPECT_EQ(result.lost, 0U);
}

TEST_F(replay_client_test, stopping_cancels_what_is_open_and_counts_what_was_not_sent) {
  std::atomic<bool> stop{false};
  replay_options options;
  options.stop = &stop;
  options.target = server_.target();
  sim::workload workload;
  workload.requests = {{0, scripted_server::silent + 1, tokens_asked, {}}, {1000, 1, tokens_asked, {}}};
  std::uint64_t watched = 0;
  const auto result = replay(
      workload, options,
      [&](const replay_progress& progress) {
        EXPECT_EQ(progress.total, 2U);
        ++watched;
        stop = progress.tokens > 0;
      },
      0.01);
  EXPECT_EQ(result.cancelled, 1U);
  EXPECT_EQ(result.not_sent, 1U);
  EXPECT_GT(watched, 1U);
}

TEST_F(replay_client_test, no_more_streams_than_allowed_are_open_at_once) {
  replay_options options;
  options.streams_max = 1;
  const auto result = play(server_, std::vector<int>(20, scripted_server::good), options);
  EXPECT_EQ(result.completed, 20U);
}

TEST_F(replay_client_test, a_request_that_follows_another_is_sent_its_think_time_after_that_one_ended_however_it_did) {
  replay_options options;
  options.target = server_.target();
  options.silence_s = 0.3;
  sim::workload workload;
  for (const int script :
       {scripted_server::good, scripted_server::named_failure, scripted_server::silent, scripted_server::good}) {
    sim::workload_request request{0, static_cast<std::uint32_t>(script) + 1, tokens_asked, {}};
    if (!workload.requests.empty()) {
      request.after = static_cast<std::uint32_t>(workload.requests.size() - 1);
      request.think_s = 0.2;
    }
    workload.requests.push_back(request);
  }
  const auto result = replay(workload, options);
  EXPECT_EQ(result.completed, 2U);
  EXPECT_EQ(result.failed, 1U);
  EXPECT_EQ(result.lost, 1U) << "the silent one is given up, and its client goes on";
  EXPECT_EQ(result.not_sent, 0U);
  EXPECT_GT(result.elapsed_s, 3 * 0.2 + 0.3);
  EXPECT_LT(result.elapsed_s, 5);
  EXPECT_LT(result.send_lag.percentile(99), 0.2);
}

TEST_F(replay_client_test, nobody_listening_is_a_failure_and_no_loss) {
  sim::workload workload;
  workload.requests = {{0, 1, tokens_asked, {}}};
  replay_options options;
  options.target = "127.0.0.1:1";
  const auto result = replay(workload, options);
  EXPECT_EQ(result.failures.at("grpc_unavailable"), 1U);
}

} // namespace
} // namespace rankwise::app
