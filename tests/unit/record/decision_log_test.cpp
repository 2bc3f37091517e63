#include "record/decision_file.hpp"
#include "record/decision_log.hpp"
#include "record/decision_replay.hpp"

#include "core/placement/pool_controller.hpp"
#include "sim/built_in_workloads.hpp"
#include "sim/pool_simulation.hpp"
#include "sim/suite.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace rankwise::record {
namespace {

using testing::HasSubstr;

class memory_lines final : public line_sink {
 public:
  void write(std::string&& line) noexcept override { lines.push_back(std::move(line)); }
  void lose() noexcept override { std::terminate(); }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& l : lines)
      all += l + "\n";
    return all;
  }
  std::vector<std::string> lines;
};

tl::expected<replay_verdict, std::string> replay(const std::string& text) {
  std::istringstream in{text};
  return replay_decisions(in);
}

/// A busy pool with whatever the seed draws: shape, policy, front ends, late and lost reports, a rank that dies.
memory_lines simulated(std::uint64_t seed) {
  constexpr const char* policies[] = {"headroom", "total_tokens", "dynamo", "random", "vllm", "smg_power_of_two"};
  sim::mixed_workload_options mixed;
  mixed.requests = 120;
  mixed.requests_per_s = 60;
  mixed.seed = seed;
  auto options = sim::suite_options(static_cast<sim::pool_shape>(seed % 3), seed % 5 == 0, 3);
  sim::apply_policy(policies[seed % std::size(policies)], options);
  options.engine.prefix_block_tokens = seed % 2 == 0 ? 512 : 0;
  options.front_ends = seed % 4 == 0 ? 2 : 1;
  options.load_path.loss = 0.1;
  options.load_path.jitter = 0.5;
  options.seed = seed;
  options.happenings = {{0.5, sim::rank_happening::kind::dies, 1, 1}, {1.5, sim::rank_happening::kind::joins, 1, 1}};
  memory_lines sink;
  std::vector<std::unique_ptr<decision_writer>> writers;
  options.recorder = [&](std::uint32_t front_end, std::uint32_t pool) {
    return writers.emplace_back(std::make_unique<decision_writer>(sink, 2 * front_end + pool)).get();
  };
  static_cast<void>(sim::simulate(sim::mixed_workload(mixed), options));
  return sink;
}

TEST(decision_log, every_decision_of_simulated_pools_is_made_again_bit_for_bit) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto sink = simulated(seed);
    const auto verdict = replay(sink.text());
    ASSERT_TRUE(verdict) << "seed " << seed << ": " << verdict.error();
    EXPECT_FALSE(verdict->difference) << "seed " << seed << ", line " << verdict->difference->line << ": "
                                      << verdict->difference->recorded << " became " << verdict->difference->replayed;
    EXPECT_FALSE(verdict->incomplete) << *verdict->incomplete;
    EXPECT_GE(verdict->decisions, 120u) << "seed " << seed;
    EXPECT_EQ(verdict->lines, sink.lines.size());
  }
}

TEST(decision_log, an_input_that_is_missing_shows_as_the_first_decision_that_differs) {
  auto sink = simulated(6); // headroom
  const auto begun = [](const std::string& l) { return l.find("\"first\"") != std::string::npos; };
  const auto at = std::find_if(sink.lines.begin(), sink.lines.end(), begun);
  ASSERT_NE(at, sink.lines.end());
  sink.lines.erase(at);
  const auto verdict = replay(sink.text());
  ASSERT_TRUE(verdict) << verdict.error();
  ASSERT_TRUE(verdict->difference);
  EXPECT_THAT(verdict->difference->recorded, HasSubstr("score"));
  EXPECT_NE(verdict->difference->recorded, verdict->difference->replayed);
}

TEST(decision_log, another_rank_and_another_score_are_differences_in_their_line) {
  const auto whole = simulated(6);
  for (const auto& [from, to] : {std::pair{"\"to\":2", "\"to\":1"}, {"\"score\":", "\"score\":1"}}) {
    auto sink = whole;
    std::uint64_t line = 0;
    for (auto& l : sink.lines) {
      ++line;
      if (const auto at = l.find(from); at != std::string::npos && line > 100) {
        l.replace(at, std::string_view{from}.size(), to);
        break;
      }
    }
    const auto verdict = replay(sink.text());
    ASSERT_TRUE(verdict) << verdict.error();
    ASSERT_TRUE(verdict->difference) << from;
    EXPECT_EQ(verdict->difference->line, line);
  }
}

TEST(decision_log, what_is_broken_is_named_by_its_line_and_field) {
  const auto whole = simulated(1);
  const auto with_line = [&](std::size_t number, const std::string& line) {
    auto sink = whole;
    sink.lines.at(number - 1) = line;
    const auto verdict = replay(sink.text());
    return verdict ? std::string{"read"} : verdict.error();
  };
  EXPECT_THAT(with_line(7, "nonsense"), HasSubstr("line 7: \"nonsense\""));
  EXPECT_THAT(with_line(7, "{}"), HasSubstr("'is'"));
  EXPECT_THAT(with_line(7, R"({"is":"dance","c":0})"), HasSubstr("line 7: is: \"dance\""));
  EXPECT_THAT(with_line(7, R"({"is":"tick","c":0})"), HasSubstr("'t'"));
  EXPECT_THAT(with_line(7, R"({"is":"policy","c":0,"t":1,"policy":"best"})"), HasSubstr("\"best\""));
  EXPECT_THAT(with_line(1, R"({"is":"opened","c":0,"version":2,"options":{}})"), HasSubstr("version: 2"));
  EXPECT_THAT(with_line(3, R"({"is":"down","c":0,"pool":0,"rank":0,"epoch":1,"state":8})"), HasSubstr("state: 8"));
  EXPECT_THAT(with_line(3, R"({"is":"down","c":0,"pool":0,"rank":65536,"epoch":1,"state":1})"),
              HasSubstr("rank: 65536 is not a whole number from 0 to 65535"));
  EXPECT_THAT(with_line(3, R"({"is":"released","c":0,"t":1,"handle":-1})"), HasSubstr("handle: -1"));
  EXPECT_THAT(with_line(3, R"({"is":"released","c":0,"t":1.5,"handle":1})"), HasSubstr("t: 1.5"));
  EXPECT_THAT(replay(std::string(decision_line_bytes_max + 1, ' ')).error(), HasSubstr("line 1: it has more than"));
  EXPECT_THAT(replay("").error(), HasSubstr("empty"));
}

TEST(decision_log, a_log_that_lacks_lines_says_where_it_ends) {
  const auto whole = simulated(1);
  auto text = whole.text();
  text.resize(text.size() - 10);
  const auto cut = replay(text);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->incomplete, "line " + std::to_string(whole.lines.size()) + ": it is cut off");
  auto sink = whole;
  sink.lines.insert(sink.lines.begin() + 50, R"({"is":"lost","lines":3,"why":"the disk was too slow"})");
  const auto gap = replay(sink.text());
  ASSERT_TRUE(gap);
  EXPECT_EQ(gap->incomplete, "line 51: 3 lines were lost: the disk was too slow");
  EXPECT_EQ(gap->lines_skipped, sink.lines.size() - 51);
}

TEST(decision_log, after_a_loss_comparing_goes_on_with_the_next_process) {
  const auto whole = simulated(1);
  const auto all = replay(whole.text())->decisions;
  auto gap = whole;
  gap.lines.erase(gap.lines.begin() + 50, gap.lines.end() - 20);
  gap.lines.insert(gap.lines.begin() + 50, R"({"is":"lost","lines":3,"why":"the disk was too slow"})");
  const auto before = replay(gap.text())->decisions;
  const auto both = replay(gap.text() + whole.text());
  ASSERT_TRUE(both) << both.error();
  EXPECT_EQ(both->decisions, before + all);
  EXPECT_TRUE(both->incomplete);
  EXPECT_EQ(both->lines_skipped, 20u);
  auto other = whole;
  const auto placed = std::find_if(other.lines.begin(), other.lines.end(),
                                   [](const std::string& l) { return l.find("\"to\":") != std::string::npos; });
  placed->replace(placed->find("\"to\":") + 5, 1, "9");
  EXPECT_TRUE(replay(gap.text() + other.text())->difference) << "a difference there is found";
}

TEST(decision_log, one_whose_beginning_was_cut_off_is_compared_from_the_next_process_on) {
  const auto whole = simulated(1);
  auto tail = whole;
  tail.lines.erase(tail.lines.begin(), tail.lines.end() - 20);
  const auto alone = replay(tail.text());
  ASSERT_TRUE(alone) << alone.error();
  EXPECT_EQ(alone->incomplete, "line 1: controller 0 was not opened before");
  EXPECT_EQ(alone->decisions, 0u);
  EXPECT_EQ(alone->lines_skipped, 20u);
  const auto both = replay(tail.text() + whole.text());
  ASSERT_TRUE(both) << both.error();
  EXPECT_EQ(both->decisions, replay(whole.text())->decisions);
  EXPECT_EQ(both->lines_skipped, 20u);
}

TEST(decision_log, one_whose_first_line_was_cut_says_where_the_next_whole_start_is_and_goes_on_from_there) {
  const auto whole = simulated(4); // two front ends: two controllers
  auto tail = whole;
  tail.lines.erase(tail.lines.begin(), tail.lines.end() - 21);
  tail.lines.front().erase(0, 10);
  const auto both = replay(tail.text() + whole.text());
  ASSERT_TRUE(both) << both.error();
  EXPECT_EQ(both->incomplete, "line 1: its beginning was cut off");
  EXPECT_EQ(both->decisions, replay(whole.text())->decisions);
  ASSERT_EQ(both->gaps.size(), 1u);
  const auto& gap = both->gaps[0];
  EXPECT_EQ(gap.line, 1u);
  EXPECT_EQ(gap.lines_skipped, 20u);
  ASSERT_EQ(gap.next_starts.size(), 2u);
  for (const auto& [controller, start] : gap.next_starts) {
    ASSERT_TRUE(start) << controller;
    ASSERT_GT(*start, 21u);
    EXPECT_THAT(whole.lines.at(*start - 22), HasSubstr(fmt::format("\"c\":{},\"is\":\"opened\"", controller)));
  }
  const auto alone = replay(tail.text());
  ASSERT_TRUE(alone) << alone.error();
  ASSERT_EQ(alone->gaps.size(), 1u);
  for (const auto& [controller, start] : alone->gaps[0].next_starts)
    EXPECT_FALSE(start) << "nothing follows for controller " << controller;
}

TEST(decision_log, each_loss_is_a_gap_of_its_own) {
  const auto whole = simulated(1);
  const std::string lost = R"({"is":"lost","lines":3,"why":"the disk was too slow"})";
  const auto verdict = replay(whole.text() + lost + "\n" + whole.text() + lost + "\n");
  ASSERT_TRUE(verdict) << verdict.error();
  ASSERT_EQ(verdict->gaps.size(), 2u);
  const auto length = whole.lines.size();
  EXPECT_EQ(verdict->gaps[0].line, length + 1);
  EXPECT_EQ(verdict->gaps[0].next_starts.at(0), length + 2);
  EXPECT_EQ(verdict->gaps[1].line, 2 * length + 2);
  EXPECT_EQ(verdict->gaps[1].next_starts.at(0), std::nullopt);
}

TEST(decision_log, a_text_that_is_none_is_no_log_whose_beginning_was_cut) {
  EXPECT_THAT(replay("my thesis\n").error(), HasSubstr("line 1: \"my thesis\" is not a JSON object"));
  EXPECT_THAT(replay("my thesis\nin two lines\n").error(), HasSubstr("line 1: \"my thesis\""));
}

TEST(decision_log, options_and_doubles_come_back_to_the_bit) {
  core::pool_options o;
  o.name = "decode";
  o.index = 3;
  o.role = core::pool_role::decode;
  o.tuning.headroom_damage_weight = 0.1 + 0.2;
  o.tuning.seed = 0xffff'ffff'ffff'fff1;
  o.ledger.report_lag = core::duration{123'456'789};
  o.health.ejected_share_max = 1.0 / 3;
  const auto back = pool_options_of(nlohmann::json::parse(to_json(o).dump()));
  EXPECT_EQ(to_json(back), to_json(o));
  EXPECT_EQ(back.tuning.headroom_damage_weight, o.tuning.headroom_damage_weight);
  EXPECT_EQ(back.tuning.seed, o.tuning.seed);
  EXPECT_EQ(back.ledger.report_lag, o.ledger.report_lag);
  EXPECT_EQ(back.health.ejected_share_max, o.health.ejected_share_max);
  EXPECT_EQ(back.role, o.role);
}

// -- the file that a thread writes
// ------------------------------------------------------------------------------------------

class decision_file_test : public testing::Test {
 protected:
  ~decision_file_test() override { std::filesystem::remove(path); }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::ifstream in{path};
    std::vector<std::string> result;
    for (std::string line; std::getline(in, line);)
      result.push_back(line);
    return result;
  }
  const std::string path =
      (std::filesystem::temp_directory_path() / ("rankwise-decisions-" + std::to_string(::getpid()))).string();
};

TEST_F(decision_file_test, what_was_written_is_in_the_file_when_it_is_closed) {
  {
    decision_file file{path};
    for (int i = 0; i < 10'000; ++i)
      file.write(std::to_string(i));
    file.lose();
    file.write("after");
    EXPECT_EQ(file.lines_lost(), 1u);
  }
  const auto read = lines();
  ASSERT_EQ(read.size(), 10'002u);
  for (std::size_t i = 0; i < 10'000; ++i)
    EXPECT_EQ(read[i], std::to_string(i));
  EXPECT_EQ(read[10'000], R"({"is":"lost","lines":1,"why":"out of memory"})");
  EXPECT_EQ(read[10'001], "after");
}

TEST_F(decision_file_test, a_full_file_ends_with_what_it_lacks) {
  {
    decision_file::limits l;
    l.file_bytes_max = 50;
    decision_file file{path, l};
    for (int i = 0; i < 10; ++i)
      file.write("123456789");
    EXPECT_EQ(file.lines_lost(), 5u);
  }
  const auto read = lines();
  ASSERT_EQ(read.size(), 6u);
  EXPECT_EQ(read.back(), R"({"is":"lost","lines":5,"why":"the file is full"})");
}

TEST_F(decision_file_test, lines_that_the_disk_is_too_slow_for_leave_a_mark_in_their_place) {
  {
    decision_file::limits l;
    l.queued_bytes_max = 5;
    decision_file file{path, l};
    file.write("123456789"); // more than may wait
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    file.write("after");
  }
  EXPECT_THAT(lines(), testing::ElementsAre(R"({"is":"lost","lines":1,"why":"the disk was too slow"})", "after"));
}

TEST_F(decision_file_test, a_new_process_goes_on_after_the_last_whole_line_of_the_one_before) {
  const std::string first = R"({"c":0,"is":"first"})";
  const std::string second = R"({"c":0,"is":"second"})" + std::string(100'000, ' ');
  { std::ofstream{path} << first << "\n" << second << "\ncut" << std::string(200'000, ' '); }
  { decision_file{path}.write("third"); }
  EXPECT_THAT(lines(), testing::ElementsAre(first, second, "third"));
  { decision_file{path}.write("fourth"); }
  EXPECT_THAT(lines(), testing::ElementsAre(first, second, "third", "fourth"));
}

TEST_F(decision_file_test, a_log_whose_oldest_lines_were_cut_away_goes_on_whatever_line_is_first_now) {
  std::set<std::string> beginnings;
  for (const auto& line : simulated(2).lines) {
    if (!beginnings.insert(line.substr(0, line.find(':'))).second)
      continue;
    { std::ofstream{path} << line << "\n"; }
    { decision_file{path}.write("next"); }
    EXPECT_THAT(lines(), testing::ElementsAre(line, "next"));
  }
  EXPECT_GT(beginnings.size(), 1u);
}

TEST_F(decision_file_test, a_file_with_something_else_in_it_stays_as_it_is) {
  for (const std::string text : {"my thesis, in one line", "a: 1\nb: 2\n", R"({"key": "value"})",
                                 R"({"block_tokens":256,"rankwise_requests":1})"}) {
    { std::ofstream{path} << text; }
    const auto error = [&] {
      try {
        decision_file{path}.write("x");
        return std::string{"written"};
      } catch (const std::runtime_error& e) {
        return std::string{e.what()};
      }
    }();
    EXPECT_EQ(error, "decision_log: cannot write " + path + ": it exists and is no decision log");
    std::ifstream in{path};
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>{in}, {}), text);
  }
  EXPECT_THROW(decision_file{"/dev/null"}, std::runtime_error);
  try {
    decision_file file{"/nowhere/at/all"};
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("No such file or directory"));
  }
}

TEST_F(decision_file_test, only_its_owner_reads_it_whoever_made_it) {
  { std::ofstream{path}; }
  std::filesystem::permissions(path, std::filesystem::perms{0644});
  { decision_file{path}.write("x"); }
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms{0600});
}

TEST_F(decision_file_test, a_folder_that_is_not_there_is_an_error_that_names_the_path) {
  EXPECT_THROW(decision_file{"/nowhere/decisions"}, std::runtime_error);
}

} // namespace
} // namespace rankwise::record
