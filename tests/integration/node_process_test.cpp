#include "app/node/history_file.hpp"
#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"
#include "io/grpc/unique_fd.hpp"
#include "io/http/admin_server.hpp"
#include "record/decision_replay.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace {

using namespace rankwise;
using namespace std::chrono_literals;
using nlohmann::json;
using strings = std::vector<std::string>;

io::grpc::unique_fd connect_to(std::uint16_t port) {
  io::grpc::unique_fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

/// A node, its engines and a folder for their files; all of it goes with the test.
class node_process : public testing::Test {
 protected:
  void TearDown() override {
    engines.clear();
    node.reset();
    if (HasFailure()) {
      std::ifstream log{folder + "/node.log"};
      std::cerr << log.rdbuf();
    }
  }

  void start_node(int ranks, const strings& more = {}) {
    strings arguments{"node",
                      "--ranks",
                      std::to_string(ranks),
                      "--grpc",
                      "127.0.0.1:0",
                      "--admin",
                      "127.0.0.1:0",
                      "--handshake",
                      "tcp://127.0.0.1:0",
                      "--history",
                      folder + "/history.txt",
                      "--fault-injection",
                      "--decision-log",
                      folder + "/decisions.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    node = std::make_unique<app::child_process>(RANKWISE_PROGRAM, arguments, folder + "/node.log");
    grpc = node->wait_line("grpc=", 10s).value_or("");
    admin = node->wait_line("admin=", 10s).value_or("");
    handshake = node->wait_line("handshake=unified:", 10s).value_or("");
    ASSERT_FALSE(handshake.empty());
  }

  app::child_process& start_engine(int first, int ranks, int dp_size, const strings& more = {}) {
    strings arguments{"engine",
                      "--handshake",
                      handshake,
                      "--first-rank",
                      std::to_string(first),
                      "--ranks",
                      std::to_string(ranks),
                      "--dp-size",
                      std::to_string(dp_size),
                      "--quiet",
                      "--die-with-parent",
                      "--time-scale",
                      "5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    engines.push_back(std::make_unique<app::child_process>(RANKWISE_PROGRAM, arguments, folder + "/engine.log"));
    return *engines.back();
  }

  void await_ready() { ASSERT_TRUE(node->wait_line("READY", 15s)) << "the ranks did not join"; }

  std::unique_ptr<app::child_process> start_replay(const strings& more) {
    strings arguments{"replay",  "--target",  grpc,        "--json", folder + "/replay.json",
                      "--quiet", "--no-fail", "--silence", "20"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<app::child_process>(RANKWISE_PROGRAM, arguments, folder + "/replay.log");
  }

  json result_of(app::child_process& replay) {
    while (::kill(replay.pid(), 0) == 0 && !std::filesystem::exists(folder + "/replay.json"))
      std::this_thread::sleep_for(20ms);
    std::this_thread::sleep_for(200ms);
    std::ifstream in{folder + "/replay.json"};
    return json::parse(in, nullptr, false);
  }

  json get(const std::string& path) {
    const auto answer = io::http_get(admin, path);
    EXPECT_EQ(answer.status, 200) << path << ": " << answer.body;
    return json::parse(answer.body, nullptr, false);
  }

  void crash(const std::string& role) {
    EXPECT_EQ(io::http_post(admin, "/fault/crash?role=" + role + "&pool=unified").status, 200);
  }

  // Ends the node and checks what it promised to every client.
  void end_and_check_history() {
    EXPECT_EQ(node->end(10s), 0);
    const auto verdict = app::check_history(folder + "/history.txt");
    EXPECT_THAT(verdict.violations, testing::IsEmpty());
    EXPECT_EQ(verdict.accepted, verdict.ended);
    EXPECT_GT(verdict.accepted, 0U);
    // Whatever the test did to ranks and actors: its decisions are made again by what the controllers were told.
    const auto replayed = record::replay_decisions(std::filesystem::path{folder + "/decisions.jsonl"});
    ASSERT_TRUE(replayed) << replayed.error();
    EXPECT_FALSE(replayed->difference) << "line " << replayed->difference->line << ": "
                                       << replayed->difference->recorded << " became "
                                       << replayed->difference->replayed;
    EXPECT_FALSE(replayed->incomplete) << *replayed->incomplete;
    EXPECT_GE(replayed->decisions, verdict.accepted);
  }

  app::scratch_folder scratch{"rankwise-test-"};
  const std::string folder = scratch.path();
  std::string grpc;
  std::string admin;
  std::string handshake;
  std::unique_ptr<app::child_process> node;
  std::vector<std::unique_ptr<app::child_process>> engines;
};

TEST_F(node_process, serves_every_request_once_and_every_token_in_order) {
  start_node(8);
  start_engine(0, 8, 8);
  await_ready();
  auto replay = start_replay({"--limit", "200", "--rate", "60"});
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["completed"], 200) << result.dump();
  EXPECT_EQ(result["requests"]["lost"], 0);
  EXPECT_EQ(result["tokens"]["wrong"], 0);
  const auto ranks = get("/ranks");
  for (const auto& rank : ranks["pools"][0]["ranks"]) {
    EXPECT_GT(rank["placements"], 5) << rank.dump();
    EXPECT_EQ(rank["requests"], 0);
  }
  const auto status = get("/status");
  EXPECT_EQ(status["requests"]["in_flight"], 0);
  end_and_check_history();
}

TEST_F(node_process, of_four_request_managers_one_dies_under_load_and_only_its_streams_end) {
  std::ofstream{folder + "/node.toml"} << "[requests]\nmanagers = 4\n";
  start_node(4, {"--config", folder + "/node.toml"});
  start_engine(0, 4, 4);
  await_ready();
  auto replay = start_replay({"--limit", "200", "--rate", "60"});
  std::this_thread::sleep_for(2s);
  EXPECT_EQ(io::http_post(admin, "/fault/crash?role=request_manager&index=2").status, 200);
  EXPECT_EQ(io::http_post(admin, "/fault/crash?role=request_manager&index=4").status, 404);
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["lost"], 0) << result.dump();
  EXPECT_EQ(result["tokens"]["wrong"], 0);
  const auto failed = result["requests"]["failed"].get<int>();
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 100) << "about a quarter of those that were streaming";
  for (const auto& [reason, count] : result["failures"].items())
    EXPECT_EQ(reason, "request_manager_restarted") << count;
  EXPECT_EQ(result["requests"]["completed"].get<int>() + failed, 200);
  for (const auto& rank : get("/ranks")["pools"][0]["ranks"])
    EXPECT_EQ(rank["requests"], 0) << rank.dump();
  const auto actors = get("/actors")["children"];
  EXPECT_EQ(std::count_if(actors.begin(), actors.end(), [](const json& a) { return a["role"] == "request_manager"; }),
            4);
  EXPECT_TRUE(std::any_of(actors.begin(), actors.end(), [](const json& a) {
    return a["role"] == "request_manager" && a["name"] == "2" && a["restarts"] == 1;
  })) << actors.dump();
  EXPECT_EQ(node->end(10s), 0);
}

// 38. one of four ranks killed
TEST_F(node_process, a_killed_rank_fails_only_the_streams_on_it_and_its_replacement_serves) {
  start_node(4);
  for (int i = 0; i < 4; ++i)
    start_engine(i, 1, 4);
  await_ready();
  auto replay = start_replay({"--limit", "200", "--rate", "40"});
  std::this_thread::sleep_for(2s);
  engines[3]->signal(SIGKILL);
  std::this_thread::sleep_for(1s);
  EXPECT_EQ(get("/ranks")["pools"][0]["ranks"][3]["state"], "down");
  start_engine(3, 1, 4);
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["lost"], 0) << result.dump();
  EXPECT_EQ(result["tokens"]["wrong"], 0);
  for (const auto& [reason, count] : result["failures"].items())
    EXPECT_EQ(reason, "rank_lost");
  const auto rank = get("/ranks")["pools"][0]["ranks"][3];
  EXPECT_EQ(rank["epoch"], 2);
  EXPECT_EQ(rank["state"], "ready");
  end_and_check_history();
}

// 20. a frozen peer accepts silently
TEST_F(node_process, a_frozen_rank_is_down_within_a_second_and_comes_back_as_a_new_epoch) {
  start_node(2);
  start_engine(0, 1, 2);
  start_engine(1, 1, 2);
  await_ready();
  auto replay = start_replay({"--limit", "120", "--rate", "30"});
  std::this_thread::sleep_for(1s);
  engines[1]->signal(SIGSTOP);
  std::this_thread::sleep_for(1s);
  EXPECT_EQ(get("/ranks")["pools"][0]["ranks"][1]["state"], "down");
  engines[1]->signal(SIGCONT);
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["lost"], 0) << result.dump();
  EXPECT_EQ(result["tokens"]["wrong"], 0);
  const auto rank = get("/ranks")["pools"][0]["ranks"][1];
  EXPECT_EQ(rank["epoch"], 2);
  EXPECT_EQ(rank["state"], "ready");
  end_and_check_history();
}

TEST_F(node_process, a_killed_node_has_its_running_ranks_back_and_delivers_nothing_of_the_old_streams) {
  const strings kept{"--state", folder + "/state"};
  start_node(4, kept);
  start_engine(0, 4, 4);
  await_ready();
  for (int round = 0; round < 3; ++round) {
    auto replay = start_replay({"--limit", "400", "--rate", "100"});
    std::this_thread::sleep_for(1s);
    node->signal(SIGKILL);
    node.reset();
    const auto started = std::chrono::steady_clock::now();
    start_node(4, kept); // another handshake port: nobody shakes hands
    ASSERT_TRUE(node->wait_line("READY", 5s)) << round;
    EXPECT_LT(std::chrono::steady_clock::now() - started, 2s);
    replay.reset();
    std::filesystem::remove(folder + "/replay.json");
    auto again = start_replay({"--limit", "30", "--rate", "60"});
    const auto result = result_of(*again);
    EXPECT_EQ(result["requests"]["completed"], 30) << result.dump();
    EXPECT_EQ(result["tokens"]["wrong"], 0);
    for (const auto& rank : get("/ranks")["pools"][0]["ranks"])
      EXPECT_EQ(rank["epoch"], round + 2) << rank.dump();
  }
  end_and_check_history();
}

TEST_F(node_process, its_requests_can_be_recorded_and_played_in_the_simulator) {
  start_node(2);
  start_engine(0, 2, 2);
  await_ready();
  const auto file = folder + "/requests.jsonl";
  app::child_process recorder{RANKWISE_PROGRAM, {"record", "--admin", admin, "--output", file}, folder + "/record.log"};
  std::this_thread::sleep_for(500ms); // it asks for the first time
  const auto result = result_of(*start_replay({"--limit", "100", "--rate", "40"}));
  EXPECT_EQ(result["requests"]["completed"], 100) << result.dump();
  std::this_thread::sleep_for(300ms);
  recorder.signal(SIGINT);
  EXPECT_EQ(recorder.wait_end(5s), 0);
  std::uint64_t tokens = 0;
  std::size_t requests = 0;
  std::ifstream in{file};
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_EQ(json::parse(line)["block_tokens"], 256) << line;
  while (std::getline(in, line)) {
    const auto request = json::parse(line);
    EXPECT_FALSE(request.contains("input_ids"));
    tokens += request["output_tokens"].get<std::uint64_t>();
    ++requests;
  }
  EXPECT_EQ(requests, 100U);
  EXPECT_EQ(tokens, result["tokens"]["delivered"].get<std::uint64_t>());
  app::child_process sim{RANKWISE_PROGRAM,
                         {"sim", "--trace", file, "--ranks", "2", "--policies", "headroom,total_tokens",
                          "--prefix-cache", "--json", folder + "/sim.json"},
                         folder + "/sim.log"};
  EXPECT_EQ(sim.wait_end(30s), 0);
  std::ifstream played{folder + "/sim.json"};
  const auto policies = json::parse(played)["policies"];
  ASSERT_EQ(policies.size(), 2U);
  EXPECT_EQ(policies[0]["completed"], 100);
  end_and_check_history();
}

TEST_F(node_process, a_rolling_drain_of_all_ranks_under_load_loses_nothing) {
  start_node(3);
  for (int i = 0; i < 3; ++i)
    start_engine(i, 1, 3);
  await_ready();
  auto replay = start_replay({"--limit", "300", "--rate", "40"});
  std::this_thread::sleep_for(500ms);
  for (int round = 0; round < 1; ++round) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto query = "?pool=unified&rank=" + std::to_string(rank);
      ASSERT_EQ(io::http_post(admin, "/ranks/drain" + query + "&deadline_s=60").status, 200);
      for (int i = 0; i < 500 && get("/ranks")["pools"][0]["ranks"][rank]["state"] != "drained"; ++i)
        std::this_thread::sleep_for(50ms);
      EXPECT_EQ(get("/ranks")["pools"][0]["ranks"][rank]["state"], "drained");
      ASSERT_EQ(io::http_post(admin, "/ranks/undrain" + query).status, 200);
    }
  }
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["completed"], 300) << result.dump();
  EXPECT_EQ(result["tokens"]["wrong"], 0);
  EXPECT_EQ(io::http_post(admin, "/ranks/remove?pool=unified&rank=9").status, 404);
  const auto nothing = io::http_get(admin, "/rank");
  EXPECT_EQ(nothing.status, 404);
  EXPECT_THAT(nothing.body,
              testing::AllOf(testing::StartsWith("no GET /rank; there are "), testing::HasSubstr("GET /ranks, ")));
  EXPECT_EQ(io::http_post(admin, "/ranks/remove?pool=unified&rank=0").status, 409);
  const auto events = get("/events")["events"];
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const json& e) {
    return e["subject"] == "unified/1" && e["change"].get<std::string>().starts_with("draining -> drained");
  })) << events.dump(1);
  end_and_check_history();
}

TEST_F(node_process, crashes_of_forwarder_controller_and_rank_actors_lose_nothing) {
  start_node(4);
  start_engine(0, 4, 4);
  await_ready();
  auto replay = start_replay({"--limit", "150", "--rate", "50"});
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(400ms);
    crash("load_forwarder");
    crash("dp_controller");
    crash("dp_rank");
  }
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["completed"], 150) << result.dump();
  EXPECT_EQ(result["tokens"]["wrong"], 0);
  int restarts = 0;
  const auto actors = get("/actors");
  for (const auto& actor : actors["children"])
    restarts += actor["restarts"].get<int>();
  EXPECT_EQ(restarts, 12);
  EXPECT_EQ(get("/ranks")["pools"][0]["charges"], 0);
  end_and_check_history();
}

TEST_F(node_process, a_second_signal_ends_a_drain_at_once_with_the_outcome_of_its_deadline) {
  start_node(1);
  start_engine(0, 1, 1);
  await_ready();
  auto replay = start_replay({"--limit", "300", "--rate", "100"});
  std::this_thread::sleep_for(1s);
  ASSERT_GT(get("/status")["requests"]["in_flight"], 10);
  node->signal(SIGTERM);
  EXPECT_FALSE(node->wait_end(1s)) << "it drains, for 30 s";
  const auto hurried = std::chrono::steady_clock::now();
  node->signal(SIGINT);
  EXPECT_EQ(node->wait_end(10s), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - hurried, 3s);
  const auto verdict = app::check_history(folder + "/history.txt");
  EXPECT_THAT(verdict.violations, testing::IsEmpty());
  EXPECT_EQ(verdict.accepted, verdict.ended);
  const auto result = result_of(*replay);
  EXPECT_EQ(result["requests"]["lost"], 0) << result.dump();
  EXPECT_GT(result["failures"].value("shutting_down", 0), 0) << result.dump();
}

TEST_F(node_process, a_forwarder_that_crashes_too_often_is_parked_and_the_node_goes_on_degraded) {
  start_node(2);
  start_engine(0, 2, 2);
  await_ready();
  for (int i = 0; i < 60 && !get("/status")["degraded"].get<bool>(); ++i) {
    crash("load_forwarder");
    std::this_thread::sleep_for(100ms);
  }
  const auto status = get("/status");
  EXPECT_EQ(status["degraded_reason"], "load_forwarder is parked");
  auto replay = start_replay({"--limit", "50", "--rate", "50"});
  EXPECT_EQ(result_of(*replay)["requests"]["completed"], 50);
  end_and_check_history();
}

TEST_F(node_process, a_controller_that_crashes_too_often_ends_the_process_with_the_reason) {
  start_node(1);
  for (int i = 0; i < 60 && ::kill(node->pid(), 0) == 0; ++i) {
    static_cast<void>(io::http_post(admin, "/fault/crash?role=dp_controller", 1));
    std::this_thread::sleep_for(50ms);
    if (io::http_get(admin, "/healthz", 1).status == 0)
      break;
  }
  EXPECT_EQ(node->end(5s), 1);
  std::ifstream log{folder + "/node.log"};
  const std::string text{std::istreambuf_iterator<char>{log}, {}};
  EXPECT_THAT(text, testing::HasSubstr("dp_controller unified crashed more than 5 times in 30 s"));
}

// 22. sglang PR34233
TEST_F(node_process, a_rank_that_dies_before_it_is_ready_ends_the_start_within_its_bound_and_is_named) {
  std::ofstream{folder + "/node.toml"} << "[node]\nready_max_s = 1.5\n";
  start_node(2, {"--config", folder + "/node.toml"});
  start_engine(1, 1, 2, {"--fault", "crash-at-start"}).wait_line("nothing, its output ends with it", 1s);
  start_engine(0, 1, 2);
  EXPECT_FALSE(node->wait_line("READY", 5s)) << "its output ends with it";
  EXPECT_EQ(io::http_get(admin, "/healthz", 1).status, 0) << "it has ended by itself";
  EXPECT_EQ(node->end(5s), 1);
  std::ifstream log{folder + "/node.log"};
  const std::string text{std::istreambuf_iterator<char>{log}, {}};
  EXPECT_THAT(text, testing::HasSubstr("pool unified has 1 of 2 ranks: rank 1 is down"));
}

// 48. an awaited rank never comes
TEST_F(node_process, a_node_serves_with_the_others_when_an_awaited_rank_does_not_come_in_time) {
  std::ofstream{folder + "/node.toml"} << "[node]\nready_with_fewer_s = 1.5\n";
  start_node(3, {"--config", folder + "/node.toml"});
  const auto started = std::chrono::steady_clock::now();
  start_engine(0, 2, 3);
  await_ready();
  EXPECT_GT(std::chrono::steady_clock::now() - started, 1s);
  EXPECT_EQ(io::http_get(admin, "/readyz", 1).status, 200);
  EXPECT_EQ(get("/status")["pools"][0]["ranks_up"], 2);
  EXPECT_THAT(get("/events").dump(), testing::HasSubstr("pool unified has 2 of 3 ranks: rank 2 has not registered"));
  auto replay = start_replay({"--limit", "20", "--rate", "40"});
  EXPECT_EQ(result_of(*replay)["requests"]["completed"], 20);
  start_engine(2, 1, 3); // it may still come
  for (int i = 0; i < 50 && get("/status")["pools"][0]["ranks_up"] != 3; ++i)
    std::this_thread::sleep_for(50ms);
  EXPECT_EQ(get("/status")["pools"][0]["ranks_up"], 3);
}

// 46. ranks of an engine that disagree
TEST_F(node_process, a_rank_that_contradicts_the_others_is_refused_by_name_until_they_are_gone) {
  start_node(2);
  auto& others = start_engine(0, 2, 2);
  await_ready();
  start_engine(2, 1, 3);
  const std::string cause = "rank 2 says data_parallel_size 3, rank 0 says 2";
  const auto warnings = [&] { return get("/status")["warnings"].dump(); };
  for (int i = 0; i < 50 && warnings().find(cause) == std::string::npos; ++i)
    std::this_thread::sleep_for(50ms);
  EXPECT_THAT(warnings(), testing::HasSubstr("unified/2 was refused: registration: " + cause));
  EXPECT_THAT(get("/events").dump(), testing::HasSubstr(cause));
  auto replay = start_replay({"--limit", "20", "--rate", "40"});
  EXPECT_EQ(result_of(*replay)["requests"]["completed"], 20) << "the others serve";
  others.signal(SIGKILL);
  for (int i = 0; i < 50 && get("/status")["pools"][0]["ranks_up"] != 1; ++i)
    std::this_thread::sleep_for(50ms);
  EXPECT_EQ(get("/status")["pools"][0]["ranks_up"], 1);
  EXPECT_THAT(warnings(), testing::Not(testing::HasSubstr("was refused")));
}

TEST_F(node_process, an_engine_with_free_rank_numbers_joins_a_running_node) {
  start_node(1);
  start_engine(0, 2, 0);
  await_ready();
  start_engine(2, 2, 0); // an engine by itself, not a larger one
  for (int i = 0; i < 50 && get("/status")["pools"][0]["ranks_up"] != 4; ++i)
    std::this_thread::sleep_for(50ms);
  EXPECT_EQ(get("/status")["pools"][0]["ranks_up"], 4);
}

// A browser page of another site and whoever comes through a proxy connect from loopback as well.
TEST_F(node_process, the_admin_port_is_its_own_answers_beside_idle_connections_and_takes_no_orders_of_strangers) {
  start_node(1);
  const auto colon = admin.rfind(':');
  const auto port = static_cast<std::uint16_t>(std::stoi(admin.substr(colon + 1)));
  std::vector<io::grpc::unique_fd> idle;
  for (int i = 0; i < 20; ++i)
    idle.push_back(connect_to(port));
  const auto answer_to = [&](const std::string& request) {
    const auto fd = connect_to(port);
    const timeval limit{4, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
    std::array<char, 4096> buffer{};
    const auto got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    return std::string(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(answer_to("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), testing::HasSubstr("200 OK"));
  const std::string post = "POST /policy?policy=round_robin HTTP/1.1\r\nHost: x\r\n";
  EXPECT_THAT(answer_to(post + "Origin: http://evil.example\r\nContent-Length: 0\r\n\r\n"),
              testing::HasSubstr(" 403 "));
  EXPECT_THAT(answer_to(post + "X-Forwarded-For: 203.0.113.9\r\n\r\n"), testing::HasSubstr(" 403 "));
  EXPECT_EQ(get("/ranks")["pools"][0]["policy"], "headroom");
  EXPECT_THAT(answer_to(post + "\r\n"), testing::HasSubstr(" 200 ")) << "without a length there is no body";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  std::this_thread::sleep_for(150ms); // a newer answer than the last round of questions
  EXPECT_EQ(get("/ranks")["pools"][0]["policy"], "round_robin");
  app::child_process second{RANKWISE_PROGRAM,
                            {"node", "--grpc", "127.0.0.1:0", "--handshake", "tcp://127.0.0.1:0", "--admin", admin},
                            folder + "/second.log"};
  EXPECT_FALSE(second.wait_line("admin=", 3s)) << "two nodes share one port";
  EXPECT_EQ(second.end(2s), 2);
}

TEST_F(node_process, a_rank_whose_layout_lacks_a_field_is_refused_by_name) {
  start_node(1);
  start_engine(0, 1, 1, {"--fault", "odd-layout=missing"});
  EXPECT_FALSE(node->wait_line("READY", 1s));
  std::ifstream log{folder + "/node.log"};
  const std::string text{std::istreambuf_iterator<char>{log}, {}};
  EXPECT_THAT(text, testing::HasSubstr("lacks=SamplingParams.temperature"));
}

// 36. a release inserted a field into a positional struct
TEST_F(node_process, a_rank_of_another_release_with_an_inserted_field_serves) {
  start_node(1);
  start_engine(0, 1, 1, {"--fault", "odd-layout=inserted"});
  await_ready();
  auto replay = start_replay({"--limit", "10", "--rate", "20"});
  EXPECT_EQ(result_of(*replay)["requests"]["completed"], 10);
}

TEST_F(node_process, a_pool_of_one_rank_has_no_forwarder_traffic) {
  start_node(1);
  start_engine(0, 1, 1);
  await_ready();
  auto replay = start_replay({"--limit", "30", "--rate", "30"});
  EXPECT_EQ(result_of(*replay)["requests"]["completed"], 30);
  // The slow tick still looks at the board twice a second; no report was pushed in between.
  EXPECT_GT(get("/v1/loads")["loads"][0]["max_total_num_tokens"], 0);
  const auto actors = get("/actors");
  for (const auto& actor : actors["children"])
    if (actor["role"] == "load_forwarder") {
      EXPECT_LT(actor["handled"], 60);
    }
}

TEST_F(node_process, ranks_join_a_running_node) {
  start_node(1);
  start_engine(0, 1, 2);
  await_ready();
  start_engine(1, 1, 2);
  for (int i = 0; i < 50 && get("/status")["pools"][0]["ranks_up"] != 2; ++i)
    std::this_thread::sleep_for(50ms);
  auto replay = start_replay({"--limit", "40", "--rate", "40"});
  EXPECT_EQ(result_of(*replay)["requests"]["completed"], 40);
  EXPECT_GT(get("/ranks")["pools"][0]["ranks"][1]["placements"], 5);
}

} // namespace
