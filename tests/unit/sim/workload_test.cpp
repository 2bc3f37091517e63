#include "sim/built_in_workloads.hpp"
#include "sim/prompt_ids.hpp"
#include "sim/workload.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <unistd.h>

namespace rankwise::sim {
namespace {

/// The folder of shared reference data, when this machine has it.
std::optional<std::filesystem::path> shared_traces() {
  const char* const given = std::getenv("RANKWISE_SHARED");
  for (const std::filesystem::path& root : {std::filesystem::path(given == nullptr ? "" : given),
                                            std::filesystem::path(RANKWISE_SOURCE_DIR) / ".." / "shared"}) {
    std::error_code error;
    if (!root.empty() && std::filesystem::is_directory(root / "traces", error)) {
      return root / "traces";
    }
  }
  return std::nullopt;
}

workload good(std::string_view text, std::uint64_t seed = 1) {
  auto parsed = parse_trace(text, "t", seed);
  EXPECT_TRUE(parsed) << to_string(parsed.error());
  return parsed ? *parsed : workload{};
}

std::string error_of(std::string_view text) {
  const auto parsed = parse_trace(text, "t", 1);
  return parsed ? "no error" : to_string(parsed.error());
}

TEST(workload_test, a_plain_csv_is_read_sorted_and_starts_at_zero) {
  const auto w = good("arrival_s,input_tokens,output_tokens\n7.5,100,10\n5,20,3\r\n\n");
  ASSERT_EQ(w.requests.size(), 2U);
  EXPECT_EQ(w.requests[0], (workload_request{0, 20, 3, {}}));
  EXPECT_EQ(w.requests[1], (workload_request{2.5, 100, 10, {}}));
}

TEST(workload_test, azure_times_keep_their_100_ns) {
  const auto w = good("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9999998,374,44\r\n"
                      "2023-11-17 00:00:00.5000000,396,109\r\n");
  ASSERT_EQ(w.requests.size(), 2U);
  EXPECT_NEAR(w.requests[1].arrival_s, 0.5000002, 3e-7); // seconds since 1970 as a double resolve 240 ns
  EXPECT_EQ(w.requests[1].input_tokens, 396U);
}

TEST(workload_test, mooncake_lines_keep_their_prefix_blocks) {
  const auto w = good(R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]})");
  ASSERT_EQ(w.requests.size(), 2U);
  EXPECT_EQ(w.requests[1].arrival_s, 1.5);
  EXPECT_EQ(w.requests[1].prefix_blocks, (std::vector<std::uint64_t>{0, 2}));
}

TEST(workload_test, equal_mooncake_times_are_spread_up_to_the_next_one) {
  std::string text;
  for (int stamp : {0, 3000, 6000}) {
    for (int i = 0; i < 10; ++i) {
      text += R"({"timestamp": )" + std::to_string(stamp) + R"(, "input_length": 1, "output_length": 1})" + "\n";
    }
  }
  const auto w = good(text);
  std::set<double> times;
  for (const auto& r : w.requests) {
    times.insert(r.arrival_s);
  }
  EXPECT_EQ(times.size(), 30U);
  EXPECT_LT(w.requests[9].arrival_s, 3.0);
  EXPECT_GT(w.requests[9].arrival_s, 0.5);
  EXPECT_EQ(good(text).requests, w.requests); // by seed, not by chance
  EXPECT_NE(good(text, 2).requests, w.requests);
}

TEST(workload_test, errors_name_the_line_the_field_and_the_value) {
  EXPECT_EQ(error_of("arrival_s,input_tokens,output_tokens\n1,2,3\n1,-2,3\n"),
            "t:3: input_tokens: \"-2\" is not a whole number from 1 to 16777216");
  EXPECT_EQ(error_of("arrival_s,input_tokens,output_tokens\nnan,2,3\n"),
            "t:2: arrival_s: \"nan\" is not a number from 0 to 1000000000");
  EXPECT_EQ(error_of("arrival_s,input_tokens,output_tokens\n1,2\n"), "t:2: \"1,2\" has 2 columns instead of 3");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-01 00:00:00.0,1,1\n"),
            "t:2: TIMESTAMP: \"2023-13-01 00:00:00.0\" is not a time like 2023-11-16 18:17:03.9799600");
  EXPECT_EQ(error_of("{\"timestamp\": 0, \"input_length\": 600}"), "t:1: output_length: is missing");
  EXPECT_EQ(error_of("{\"timestamp\": 0, \"input_length\": 6.5, \"output_length\": 1}"),
            "t:1: input_length: \"6.5\" is not a whole number from 1 to 16777216");
  EXPECT_EQ(error_of("{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 1, \"hash_ids\": [-1]}"),
            "t:1: hash_ids: \"-1\" is not a whole number from 0");
  EXPECT_EQ(error_of("{\"timestamp\": \n"), "t:1: \"{\"timestamp\": \" is not a JSON object");
  EXPECT_EQ(error_of("arrival_s,input_tokens,output_tokens\n"), "t: holds no request");
  EXPECT_NE(error_of("a,b,c\n1,2,3\n").find("begins no known format"), std::string::npos);
  EXPECT_NE(to_string(load_workload("/no/such/file", 1).error()).find("No such file"), std::string::npos);
}

TEST(workload_test, limits_apply_speed_then_duration_then_number) {
  workload w;
  for (int i = 0; i < 10; ++i) {
    w.requests.push_back({static_cast<double>(i), 1, 1, {}});
  }
  const auto cut = limited(w, {2, 100, 3});
  ASSERT_EQ(cut.requests.size(), 6U);
  EXPECT_EQ(cut.requests.back().arrival_s, 2.5);
  EXPECT_EQ(limited(w, {1, 4}).requests.size(), 4U);
}

TEST(workload_test, the_built_in_mix_is_the_same_for_a_seed_and_far_spread) {
  const auto w = mixed_workload({});
  EXPECT_EQ(w.requests, mixed_workload({}).requests);
  EXPECT_NE(w.requests, mixed_workload({1000, 20, 2}).requests);
  EXPECT_NEAR(w.span_s(), 50, 10);
  const auto [shortest, longest] =
      std::minmax_element(w.requests.begin(), w.requests.end(),
                          [](const auto& a, const auto& b) { return a.input_tokens < b.input_tokens; });
  EXPECT_LT(shortest->input_tokens, 30U);
  EXPECT_GT(longest->input_tokens, 10'000U);
  for (const auto& r : w.requests) {
    EXPECT_LE(r.input_tokens, 32'768U);
    EXPECT_GE(r.output_tokens, 1U);
  }
}

TEST(workload_test, prompts_with_equal_blocks_begin_with_equal_tokens) {
  const workload_request a{0, 1300, 1, {5, 6, 7}};
  const workload_request b{0, 1400, 1, {5, 6, 8}};
  const auto x = prompt_ids(a, 512, 1, 0);
  const auto y = prompt_ids(b, 512, 1, 1);
  EXPECT_EQ(x.size(), 1300U);
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + 1024, y.begin()));
  EXPECT_NE(x[1024], y[1024]);
  const workload_request alone{0, 100, 1, {}};
  EXPECT_NE(prompt_ids(alone, 512, 1, 0), prompt_ids(alone, 512, 1, 1));
  EXPECT_EQ(prompt_ids(alone, 512, 1, 3), prompt_ids(alone, 512, 1, 3));
}

class servegen_folder : public testing::Test {
 protected:
  servegen_folder() : path_(std::filesystem::temp_directory_path() / ("servegen-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~servegen_folder() override { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }

  std::filesystem::path path_;
};

TEST_F(servegen_folder, clients_are_drawn_by_their_rate_and_lengths) {
  write("chunk-0-trace.csv", "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n");
  write("chunk-0-dataset.json", R"({"0": {"input_tokens": "{45: 0.5, 46: 0.5}", "output_tokens": "{7: 1.0}"}})");
  write("chunk-1-trace.csv", "0,1,1,Weibull,1,1\n");
  write("chunk-1-dataset.json", R"({"0": {"input_tokens": "{900: 1.0}", "output_tokens": "{8: 1.0}"}})");
  const auto w = load_workload(path_, 3);
  ASSERT_TRUE(w) << to_string(w.error());
  EXPECT_NEAR(static_cast<double>(w->requests.size()), 1800, 150);
  const auto long_ones =
      std::count_if(w->requests.begin(), w->requests.end(), [](const auto& r) { return r.input_tokens == 900; });
  EXPECT_NEAR(static_cast<double>(long_ones), 600, 80);
  EXPECT_EQ(load_workload(path_, 3)->requests, w->requests);
  EXPECT_EQ(load_workload(path_, 3, {1, 100})->requests.size(), 100U);
  EXPECT_LE(load_workload(path_, 3, {2, 1'000'000, 10})->span_s(), 10);
}

TEST_F(servegen_folder, errors_name_file_and_field) {
  write("chunk-0-trace.csv", "0,2,1,Pareto,1,0.5\n");
  write("chunk-0-dataset.json", "{}");
  EXPECT_NE(to_string(load_workload(path_, 1).error()).find("chunk-0-trace.csv:1: distribution: \"Pareto\""),
            std::string::npos);
  write("chunk-0-trace.csv", "0,2,1,Gamma,1,0.5\n");
  EXPECT_NE(to_string(load_workload(path_, 1).error()).find("holds no lengths"), std::string::npos);
  write("chunk-0-dataset.json", R"({"0": {"input_tokens": "{45; 0.5}", "output_tokens": "{7: 1.0}"}})");
  EXPECT_NE(to_string(load_workload(path_, 1).error()).find("0.input_tokens: \"; 0.5}\""), std::string::npos);
}

TEST(shared_traces_test, the_published_files_are_read_whole) {
  const auto traces = shared_traces();
  if (!traces) {
    GTEST_SKIP() << "no shared traces beside the repository";
  }
  const auto conversation = load_workload(*traces / "mooncake" / "conversation_trace.jsonl", 1);
  ASSERT_TRUE(conversation) << to_string(conversation.error());
  EXPECT_EQ(conversation->requests.size(), 12'031U);
  // 3 s stamps spread out: no second holds a third of what a stamp held.
  std::size_t busiest = 0;
  std::size_t in_second = 0;
  double second = 0;
  for (const auto& r : conversation->requests) {
    in_second = r.arrival_s < second + 1 ? in_second + 1 : 1;
    second = r.arrival_s < second + 1 ? second : r.arrival_s;
    busiest = std::max(busiest, in_second);
  }
  EXPECT_LT(busiest, 25U);
  EXPECT_EQ(load_workload(*traces / "mooncake" / "synthetic_trace.jsonl", 1)->requests.size(), 3993U);
  EXPECT_EQ(load_workload(*traces / "azure2023" / "AzureLLMInferenceTrace_conv.csv", 1)->requests.size(), 19'366U);
  EXPECT_EQ(load_workload(*traces / "azure2023" / "AzureLLMInferenceTrace_code.csv", 1)->requests.size(), 8819U);
  const auto limited_azure = load_workload(*traces / "azure2023" / "AzureLLMInferenceTrace_conv.csv", 1, {8, 2000});
  EXPECT_EQ(limited_azure->requests.size(), 2000U);
  const auto servegen = load_workload(*traces / "servegen" / "reason" / "deepseek-r1", 1, {1, 20'000});
  ASSERT_TRUE(servegen) << to_string(servegen.error());
  EXPECT_EQ(servegen->requests.size(), 20'000U);
}

} // namespace
} // namespace rankwise::sim
