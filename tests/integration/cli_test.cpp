#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"
#include "io/http/admin_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

/// The commands of an operator, as processes, against a stand-in for the node that says what the test wants.
namespace {

using namespace rankwise;
using namespace std::chrono_literals;
using nlohmann::json;
using strings = std::vector<std::string>;
using testing::HasSubstr;

class cli : public testing::Test {
 protected:
  void TearDown() override { node.stop(); }

  void answers(const std::string& path, const json& body, int status = 200) {
    node.get(path, [=](const io::http_query&) { return io::http_answer{status, "application/json", body.dump()}; });
  }
  void takes(const std::string& path, const json& body) {
    node.post(path, [=](const io::http_query&) { return io::http_answer{200, "application/json", body.dump()}; });
  }

  /// The exit code; what was printed stands in `text` and `complaint`.
  int run(strings arguments) {
    node.start();
    arguments.insert(arguments.end(), {"--admin", node.address()});
    app::child_process program{RANKWISE_PROGRAM, arguments, folder + "/stderr"};
    text.clear();
    while (const auto line = program.wait_line("", 10s))
      text += *line + "\n";
    const auto code = program.wait_end(5s);
    std::ifstream in{folder + "/stderr"};
    complaint.assign(std::istreambuf_iterator<char>{in}, {});
    EXPECT_TRUE(code.has_value()) << "it does not end";
    return code.value_or(-1);
  }

  io::admin_server node{"127.0.0.1:0"};
  app::scratch_folder scratch{"rankwise-test-"};
  const std::string folder = scratch.path();
  std::string text;
  std::string complaint;
};

class drain_command : public cli {
 protected:
  int drain(int cut, const std::string& cause) {
    takes("/ranks/drain", {{"done", true}, {"pool", "decode"}, {"rank", 3}, {"text", "decode/3: is draining"}});
    answers("/ranks",
            {{"pools", {{{"pool", "decode"}, {"ranks", {{{"rank", 3}, {"state", "drained"}, {"drain_cut", cut}}}}}}}});
    answers(
        "/events",
        {{"last", 1},
         {"events", {{{"number", 1}, {"subject", "decode/3"}, {"change", "draining -> drained"}, {"cause", cause}}}}});
    return run({"drain", "decode/3"});
  }
};

TEST_F(drain_command, is_done_whatever_words_a_cause_has) {
  EXPECT_EQ(drain(0, "its last request ended before the deadline"), 0);
  EXPECT_THAT(text, HasSubstr("decode/3: is drained: its last request ended before the deadline"));
}

TEST_F(drain_command, was_not_in_time_when_its_deadline_cut_requests_whatever_words_a_cause_has) {
  EXPECT_EQ(drain(2, "time is up"), 4);
  EXPECT_THAT(text, HasSubstr("decode/3: is drained: time is up"));
}

TEST_F(cli, actors_shows_what_an_actor_says_of_itself_below_its_line) {
  const json rank{
      {"role", "dp_rank"}, {"name", "decode/3"}, {"state", "ready"}, {"detail", "silence explained: 5.0 s"}};
  answers("/actors", {{"role", "supervisor"}, {"state", "running"}, {"detail", ""}, {"children", {rank}}});
  EXPECT_EQ(run({"actors"}), 0);
  EXPECT_THAT(text, testing::ContainsRegex("\n  dp_rank decode/3 [^\n]*\n    silence explained: 5.0 s\n$"));
}

TEST_F(cli, why_shows_what_others_answered_beside_a_silent_controller_and_exits_with_4) {
  const json placed{
      {"rid", "r"}, {"pool", "prefill"},   {"at", "now"}, {"attempt", 1},          {"prompt_tokens", 7},
      {"epoch", 1}, {"max_new_tokens", 8}, {"rank", 2},   {"rule", "policy best"}, {"candidates", json::array()}};
  answers("/placements/r", {{"placements", {placed}}, {"silent", {"decode"}}});
  EXPECT_EQ(run({"why", "r"}), 4);
  EXPECT_THAT(text, HasSubstr("rank 2 (epoch 1) by policy best"));
  EXPECT_THAT(complaint, HasSubstr("the controller of pool decode did not answer"));
}

TEST_F(cli, why_does_not_say_that_there_is_nothing_when_a_controller_was_silent) {
  answers("/placements/r",
          {{"text", "rid: the others know of none"}, {"placements", json::array()}, {"silent", {"decode"}}}, 503);
  EXPECT_EQ(run({"why", "r"}), 4);
  EXPECT_THAT(complaint, HasSubstr("the controller of pool decode did not answer"));
}

TEST_F(cli, why_of_a_request_that_no_controller_knows_exits_with_1) {
  answers("/placements/r", {{"done", false}, {"text", "rid: none"}}, 404);
  EXPECT_EQ(run({"why", "r"}), 1);
}

} // namespace
