#include "app/node/state_file.hpp"

#include "app/process/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace {

using namespace rankwise;
using testing::HasSubstr;

class state_file : public testing::Test {
 protected:
  static app::node_state example() {
    app::node_state state;
    state.boot = 7;
    io::rank_record record;
    record.pool = "decode";
    record.identity = std::string{"\x03\x00", 2};
    record.input_address = "ipc:///tmp/in";
    record.output_address = "tcp://10.0.0.1:5000";
    record.registration.rank.rank = 3;
    record.registration.epoch = 9;
    record.registration.kv_capacity = 1'000'000;
    record.registration.model_name = "/models/m";
    record.registration.layouts = {{"TokenizedGenerateReqInput", {"rid", "input_ids"}}};
    state.ranks = {record};
    state.drained = {{"decode", std::uint16_t{3}}};
    return state;
  }
  void rewrite(const std::string& from, const std::string& to) const {
    std::stringstream text;
    text << std::ifstream{path}.rdbuf();
    auto changed = text.str();
    const auto at = changed.find(from);
    ASSERT_NE(at, std::string::npos);
    changed.replace(at, from.size(), to);
    std::ofstream{path} << changed;
  }

  app::scratch_folder folder{"rankwise-state-test-"};
  std::string path = folder.path() + "/node.state";
};

TEST_F(state_file, what_is_written_is_read) {
  ASSERT_TRUE(app::write_state(path, example()));
  const auto read = app::read_state(path);
  ASSERT_TRUE(read && *read);
  EXPECT_EQ((*read)->boot, 7U);
  EXPECT_EQ((*read)->drained, example().drained);
  ASSERT_EQ((*read)->ranks.size(), 1U);
  const auto& rank = (*read)->ranks[0];
  EXPECT_EQ(rank.identity, example().ranks[0].identity);
  EXPECT_EQ(rank.output_address, "tcp://10.0.0.1:5000");
  EXPECT_EQ(rank.registration.epoch, 9U);
  EXPECT_EQ(rank.registration.model_name, "/models/m");
  EXPECT_EQ(rank.registration.layouts, example().ranks[0].registration.layouts);
}

TEST_F(state_file, what_an_engine_says_of_itself_may_be_no_utf_8) {
  auto state = example();
  state.ranks[0].registration.engine_version = "bad\xff\xfe";
  state.ranks[0].registration.layouts = {{"Layout\xff", {"field\xc3"}}};
  ASSERT_TRUE(app::write_state(path, state));
  const auto read = app::read_state(path);
  ASSERT_TRUE(read && *read) << read.error();
  EXPECT_EQ((*read)->ranks[0].identity, state.ranks[0].identity);
  EXPECT_THAT((*read)->ranks[0].registration.engine_version, HasSubstr("bad"));
}

TEST_F(state_file, a_write_that_failed_is_tried_again) {
  const auto blocker = path + ".new";
  app::state_keeper keeper{folder.path()};
  std::filesystem::create_directory(blocker); // the fresh file cannot be made
  keeper.set_drained("decode", 3, true);
  std::this_thread::sleep_for(std::chrono::milliseconds{300});
  EXPECT_TRUE((*app::read_state(path))->drained.empty());
  std::filesystem::remove(blocker);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{5};
  while ((*app::read_state(path))->drained.empty() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  EXPECT_EQ((*app::read_state(path))->drained.size(), 1U);
}

TEST_F(state_file, none_is_no_error) {
  const auto read = app::read_state(path);
  ASSERT_TRUE(read);
  EXPECT_FALSE(*read);
}

TEST_F(state_file, any_damage_is_told) {
  ASSERT_TRUE(app::write_state(path, example()));
  rewrite("\"epoch\": 9", "\"epoch\": 8");
  EXPECT_THAT(app::read_state(path).error(), HasSubstr("crc32"));
  ASSERT_TRUE(app::write_state(path, example()));
  rewrite("\"version\": 1", "\"version\": 2");
  EXPECT_THAT(app::read_state(path).error(), HasSubstr("version: 2"));
  std::ofstream{path} << "{\"version\": 1, \"st";
  EXPECT_THAT(app::read_state(path).error(), HasSubstr("parse error"));
  std::ofstream{path} << "";
  EXPECT_FALSE(app::read_state(path));
}

TEST_F(state_file, a_keeper_counts_boots_keeps_what_it_is_told_and_shares_its_folder_with_nobody) {
  core::node_boot first = 0;
  {
    app::state_keeper keeper{folder.path()};
    first = keeper.found().boot;
    EXPECT_GT(first, 0U);
    EXPECT_THROW(app::state_keeper{folder.path()}, std::runtime_error);
    keeper.set_ranks(example().ranks);
    keeper.set_drained("decode", 3, true);
  }
  {
    app::state_keeper keeper{folder.path()};
    EXPECT_EQ(keeper.found().boot, first + 1);
    EXPECT_EQ(keeper.found().ranks.size(), 1U);
    EXPECT_EQ(keeper.found().drained.size(), 1U);
    keeper.set_drained("decode", 3, false);
  }
  std::ofstream{path} << "damaged";
  app::state_keeper keeper{folder.path()};
  EXPECT_THAT(keeper.damage(), HasSubstr("node.state"));
  EXPECT_TRUE(keeper.found().ranks.empty());
}

} // namespace
