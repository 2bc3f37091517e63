#include "app/sim/sim_command.hpp"

#include "app/process/scratch_folder.hpp"
#include "app/sim/decisions_csv.hpp"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

namespace rankwise::app {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class sim_command : public testing::Test {
 protected:
  /// The exit code of `rankwise sim ARGUMENTS`; what it printed stands in `text` and `complaint`.
  int run(const std::string& arguments) {
    CLI::App program;
    int code = 0;
    add_sim_command(program, code);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    try {
      program.parse("sim " + arguments);
    } catch (const CLI::Error& error) {
      complaint = error.what();
      code = 2;
    }
    std::fflush(stdout);
    std::fflush(stderr);
    text = testing::internal::GetCapturedStdout();
    complaint += testing::internal::GetCapturedStderr();
    return code;
  }
  [[nodiscard]] std::string complaint_of(const std::string& arguments) {
    complaint.clear();
    EXPECT_EQ(run(arguments), 2) << arguments;
    return complaint;
  }
  /// The first policy's, of a run with these arguments.
  [[nodiscard]] std::string hash_of(const std::string& arguments) {
    const auto file = folder + "/figures.json";
    EXPECT_EQ(run(arguments + " --policies headroom --json " + file), 0) << complaint;
    std::ifstream in{file};
    return json::parse(in).at("policies").at(0).at("event_hash");
  }

  scratch_folder scratch{"rankwise-test-"};
  const std::string folder = scratch.path();
  std::string text;
  std::string complaint;
};

TEST_F(sim_command, every_built_in_workload_is_played_and_the_table_says_how_long_it_took) {
  for (const std::string name : {"mixed", "giants", "shared-prompts", "agents", "closed-loop"}) {
    EXPECT_EQ(run("--workload " + name + " --limit 150 --clients 10 --policies headroom"), 0) << complaint;
    EXPECT_THAT(text, HasSubstr(" 150 requests in ")) << name;
    EXPECT_THAT(text, HasSubstr("wall s"));
  }
  EXPECT_THAT(text, HasSubstr("140 come after the end of another"));
}

TEST_F(sim_command, a_closed_loop_has_neither_utilisation_nor_duration) {
  EXPECT_THAT(complaint_of("--workload closed-loop --utilisation 0.9"), HasSubstr("--utilisation: the clients"));
  EXPECT_THAT(complaint_of("--workload closed-loop --duration 10"), HasSubstr("--duration: a closed loop"));
  EXPECT_THAT(complaint_of("--workload heavy"), HasSubstr("heavy"));
  EXPECT_THAT(complaint_of("--workload agents --trace x"), HasSubstr("excludes"));
}

TEST_F(sim_command, an_event_names_its_pool_and_a_rank_that_is_there) {
  const std::string few = "--limit 100 --policies headroom ";
  EXPECT_EQ(run(few + "--event freezes:1@1 --event joins:1@3 --event slows:7@2:3"), 0) << complaint;
  EXPECT_EQ(run(few + "--pool pd --prefill-ranks 2 --event dies:decode:7@1 --event drains:prefill:1@1"), 0)
      << complaint;
  const auto of = [&](const std::string& arguments) { return hash_of("--limit 100 --pool pd " + arguments); };
  EXPECT_NE(of("--event dies:decode:0@2"), of("--event dies:prefill:0@2"));
  EXPECT_EQ(of("--event dies:0@2"), of("--event dies:prefill:0@2"));
  EXPECT_NE(of("--event freezes:0@2"), of("--event dies:0@2"));
  EXPECT_EQ(of("--event dies:0@2"), of("--event freezes:0@2 --freeze-detection-ms 0"));
  EXPECT_THAT(complaint_of("--event dies:8@1"), HasSubstr("--event: \"dies:8@1\": rank 8 is not one of 0 to 7"));
  EXPECT_THAT(complaint_of("--pool pd --prefill-ranks 2 --event dies:2@1"), HasSubstr("rank 2 is not one of 0 to 1"));
  EXPECT_THAT(complaint_of("--event dies:decode:1@1"), HasSubstr("only a pd pool"));
  EXPECT_EQ(of("--event dies:0@1500ms"), of("--event dies:0@1.5"));
  EXPECT_EQ(of("--event slows:0@0.05m:3"), of("--event slows:0@3:3"));
  for (const std::string wrong :
       {"dies:1@2d", "dies:1@1e400", "dies", "dies:", "dies:1", "dies:1@", "dies:1@-1", "bursts:1@1", "dies:x:1@1"})
    EXPECT_THAT(complaint_of("--event " + wrong), HasSubstr("--event: \"" + wrong + "\" is not dies|slows")) << wrong;
  EXPECT_THAT(complaint_of("--event slows:1@1:0"), HasSubstr("the factor is not a number above 0"));
  EXPECT_THAT(complaint_of("--event slows:1@1:2x"), HasSubstr("the factor is not a number above 0"));
}

TEST_F(sim_command, decisions_of_several_policies_stand_side_by_side_in_the_file_that_was_named) {
  const auto file = folder + "/decisions.csv";
  const auto read = [&](const std::string& arguments) {
    EXPECT_EQ(run("--limit 200 --decisions " + file + " " + arguments), 0) << complaint;
    std::ifstream in{file};
    std::vector<std::vector<std::string>> rows;
    for (std::string line; std::getline(in, line);) {
      rows.emplace_back();
      std::istringstream cells{line + ","};
      for (std::string cell; std::getline(cells, cell, ',');)
        rows.back().push_back(cell);
    }
    std::filesystem::remove(file);
    return rows;
  };
  const auto both = read("--policies round_robin,headroom");
  ASSERT_EQ(both.size(), 202u);
  EXPECT_THAT(both[1],
              testing::ElementsAre("request", "round_robin_time_s", "round_robin", "headroom_time_s", "headroom"));
  const auto one = read("--policies headroom");
  ASSERT_EQ(one.size(), 202u);
  EXPECT_THAT(one[1], testing::ElementsAre("request", "time_s", "rank"));
  for (std::size_t i = 2; i < 202; ++i)
    EXPECT_THAT(both[i], testing::ElementsAre(one[i][0], testing::_, testing::_, one[i][1], one[i][2])) << i;
  const auto pairs = read("--pool pd --policies round_robin,headroom");
  ASSERT_EQ(pairs.size(), 202u);
  EXPECT_EQ(pairs[1].size(), 7u);
  EXPECT_EQ(pairs[2].size(), 7u);
}

TEST_F(sim_command, a_request_without_a_rank_has_empty_cells_where_another_policy_placed_it) {
  std::vector<sim::request_result> placed(2);
  placed[0].bound_s = 1;
  placed[0].rank = 3;
  placed[1].bound_s = 2;
  auto not_all = placed;
  not_all[0].bound_s = -1;
  EXPECT_EQ(decisions_csv({{"a", placed}, {"b", not_all}}, false),
            "request,a_time_s,a,b_time_s,b\n0,1.000000000,3,,\n1,2.000000000,0,2.000000000,0\n");
}

TEST_F(sim_command, steps_of_one_run_fit_to_its_constants_and_a_run_with_the_fit_is_the_same) {
  const std::string constants =
      "--step-base-ms 12 --step-per-request-ms 0.4 --step-per-kv-token-us 0.09 --prefill-tokens-per-s 16000";
  const auto steps = folder + "/steps.csv";
  const auto hash = hash_of("--limit 300 --steps " + steps + " " + constants);
  EXPECT_EQ(run("--fit " + steps), 0) << complaint;
  EXPECT_THAT(text, HasSubstr("  --step-base-ms 12\n  --step-per-request-ms 0.4\n  --step-per-kv-token-us 0.09\n"
                              "  --prefill-tokens-per-s 16000\n"));
  EXPECT_THAT(text, HasSubstr("error RMS 0.000 ms, mean 0.00 % of a step"));
  EXPECT_THAT(text, Not(HasSubstr("POLICY"))) << "alone it fits and ends";
  EXPECT_EQ(run("--limit 300 --workload mixed --policies headroom --fit " + steps), 0) << complaint;
  EXPECT_THAT(text, HasSubstr("POLICY"));
  EXPECT_EQ(run("--limit 300 --workload mixed --policies headroom " + constants), 0);
  EXPECT_THAT(text, HasSubstr(hash.substr(0, 8)));
}

TEST_F(sim_command, a_fit_says_what_it_cannot_tell_and_keeps_the_option) {
  const auto steps = folder + "/steps.csv";
  EXPECT_EQ(run("--limit 200 --pool decode --policies headroom --steps " + steps), 0) << complaint;
  EXPECT_EQ(run("--prefill-tokens-per-s 7000 --fit " + steps), 0) << complaint;
  EXPECT_THAT(text, HasSubstr("--prefill-tokens-per-s 7000   cannot be told, no step has any: kept as it was"));
  EXPECT_THAT(complaint_of("--fit " + folder + "/none.csv"), HasSubstr("--fit: " + folder + "/none.csv: "));
  EXPECT_THAT(complaint_of("--suite --short --fit " + steps), HasSubstr("--suite: "));
}

} // namespace
} // namespace rankwise::app
