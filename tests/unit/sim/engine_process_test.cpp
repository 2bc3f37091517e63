#include "app/engine/engine_command.hpp"
#include "engine_program.hpp"
#include "fake_front_end.hpp"
#include "wire/msgpack_writer.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace rankwise::app {
namespace {

using core::finish_reason;

std::vector<std::string> engine(fake_front_end& front, std::vector<std::string> more) {
  std::vector<std::string> command{RANKWISE_ENGINE_PROGRAM, "engine", "--handshake",           front.endpoint(),
                                   "--step-base-ms",        "5",      "--step-per-request-ms", "0"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

TEST(engine_process_test, ranks_join_register_serve_and_say_goodbye) {
  fake_front_end front;
  const auto out = std::filesystem::temp_directory_path() / ("engine-" + std::to_string(getpid()) + ".out");
  engine_program process(engine(front, {"--ranks", "3", "--first-rank", "5", "--kv-tokens", "50000"}), out.string());
  ASSERT_TRUE(front.wait_for_ranks(3));
  const auto& r = front.registrations.at(6);
  EXPECT_EQ(r.kv_cache_size_tokens, 50'000U);
  EXPECT_EQ(r.data_parallel_rank, 1U);
  EXPECT_EQ(r.data_parallel_size, 3U);
  EXPECT_EQ(r.engine_version, "sglang-0.5.23");
  for (int i = 0; i < 60; ++i) {
    front.add(static_cast<std::uint16_t>(5 + i % 3), "r" + std::to_string(i) + "~" + std::to_string(i) + ".0", 100, 10);
  }
  ASSERT_TRUE(front.run_until([&] {
    return front.requests.size() == 60 &&
           std::all_of(front.requests.begin(), front.requests.end(),
                       [](const auto& entry) { return entry.second.finish == finish_reason::length; });
  }));
  for (const auto& [rid, request] : front.requests) {
    EXPECT_EQ(request.tokens.size(), 10U) << rid;
    EXPECT_EQ(request.outputs_after_end, 0U);
  }
  process.signal(SIGTERM);
  EXPECT_TRUE(front.run_until([&] { return front.deaths == 3; }));
  EXPECT_EQ(process.wait(), engine_exit_stopped);
  std::ifstream file(out);
  std::stringstream text;
  text << file.rdbuf();
  const std::string lines = text.str();
  EXPECT_NE(lines.find("{\"rank\":5,\"joined\":true,\"role\":\"unified\""), std::string::npos);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  std::filesystem::remove(out);
}

TEST(engine_process_test, the_load_tail_shows_the_work_and_lags_by_at_most_50_ms) {
  fake_front_end front;
  engine_program process(engine(front, {"--kv-tokens", "50000"}));
  ASSERT_TRUE(front.wait_for_ranks(1));
  for (int i = 0; i < 8; ++i) {
    front.add(0, "r" + std::to_string(i), 100, 100);
  }
  ASSERT_TRUE(front.run_until([&] { return front.ended("r7"); }));
  const auto& loads = front.loads[0];
  ASSERT_GT(loads.size(), 50U);
  EXPECT_TRUE(std::any_of(loads.begin(), loads.end(), [](const auto& load) { return load.num_running == 8; }));
  const auto distinct = std::unique(front.loads[0].begin(), front.loads[0].end()) - front.loads[0].begin();
  EXPECT_GE(distinct, 5); // half a second of steps of 5 ms, sampled every 50 ms
  EXPECT_LE(distinct, 30);
  EXPECT_EQ(loads.front().kv_total_tokens, 50'000U);
}

TEST(engine_process_test, aborts_and_control_calls_are_answered) {
  fake_front_end front;
  engine_program process(engine(front, {}));
  ASSERT_TRUE(front.wait_for_ranks(1));
  front.add(0, "long", 10, 100'000);
  ASSERT_TRUE(front.run_until([&] { return !front.requests["long"].tokens.empty(); }));
  front.send(0, 2, sglang::encode_control(7, "flush_cache", "\x91\x05"));
  front.send(0, 2, sglang::encode_control(8, "dance"));
  ASSERT_TRUE(front.run_until([&] { return front.replies.size() == 2; }));
  EXPECT_EQ(front.replies[0].call_id, 7);
  EXPECT_FALSE(front.replies[0].success); // a request runs
  EXPECT_EQ(front.replies[1].message, "unknown control method 'dance'");
  front.send(0, 1, sglang::encode_abort({"long", "nobody"}));
  ASSERT_TRUE(front.run_until([&] { return front.ended("long"); }));
  EXPECT_EQ(front.requests["long"].finish, finish_reason::abort);
  front.send(0, 2, sglang::encode_control(9, "flush_cache"));
  ASSERT_TRUE(front.run_until([&] { return front.replies.size() == 3; }));
  EXPECT_TRUE(front.replies[2].success);
}

TEST(engine_process_test, what_it_cannot_decode_or_serve_ends_with_400_and_nothing_else_notices) {
  fake_front_end front;
  engine_program process(engine(front, {}));
  ASSERT_TRUE(front.wait_for_ranks(1));
  std::string broken;
  wire::msgpack_writer w(broken);
  w.array(9);
  w.text("TokenizedGenerateReqInput");
  w.text("broken");
  for (int i = 0; i < 6; ++i) {
    w.nil();
  }
  w.text("no params");
  front.send(0, 0, broken);
  front.send(0, 0, "\xc1");
  front.send(0, 9, "\xc1");
  front.add(0, "negative", 10, -1);
  front.add(0, "good", 10, 3);
  ASSERT_TRUE(front.run_until([&] { return front.ended("good") && front.ended("broken") && front.ended("negative"); }));
  EXPECT_EQ(front.requests["broken"].status, 400);
  EXPECT_EQ(front.requests["negative"].status, 400);
  EXPECT_EQ(front.requests["good"].tokens.size(), 3U);
}

TEST(engine_process_test, a_registered_layout_with_an_inserted_field_is_what_it_decodes_by) {
  fake_front_end front;
  engine_program process(engine(front, {"--fault", "odd-layout=inserted"}));
  ASSERT_TRUE(front.wait_for_ranks(1));
  EXPECT_EQ(front.registrations.at(0).positional_layouts.at("SamplingParams").front(), "rankwise_odd_field");
  front.add(0, "r", 10, 3);
  ASSERT_TRUE(front.run_until([&] { return front.ended("r"); }));
  EXPECT_EQ(front.requests["r"].tokens.size(), 3U);
}

TEST(engine_process_test, a_layout_with_a_hole_is_registered_for_the_node_to_refuse) {
  fake_front_end front;
  engine_program process(engine(front, {"--fault", "odd-layout=missing"}));
  ASSERT_TRUE(front.wait_for_ranks(1));
  const auto layout = sglang::request_layout::from_registration(front.registrations.at(0));
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().field, "SamplingParams.temperature");
}

TEST(engine_process_test, crashes_come_when_asked_for) {
  fake_front_end front;
  engine_program at_start(engine(front, {"--fault", "crash-at-start"}));
  ASSERT_TRUE(front.wait_for_ranks(1));
  EXPECT_EQ(at_start.wait(), engine_exit_crashed);
  fake_front_end other;
  engine_program later(engine(other, {"--fault", "crash-after=2"}));
  ASSERT_TRUE(other.wait_for_ranks(1));
  other.add(0, "first", 10, 1);
  ASSERT_TRUE(other.run_until([&] { return other.ended("first"); }));
  other.add(0, "second", 10, 1000);
  EXPECT_EQ(later.wait(), engine_exit_crashed);
  EXPECT_EQ(other.deaths, 0U); // no goodbye
}

TEST(engine_process_test, loads_are_absent_or_nonsense_when_asked_for) {
  fake_front_end absent;
  engine_program silent(engine(absent, {"--fault", "no-load"}));
  ASSERT_TRUE(absent.wait_for_ranks(1));
  absent.add(0, "r", 10, 20);
  ASSERT_TRUE(absent.run_until([&] { return absent.ended("r"); }));
  EXPECT_TRUE(absent.loads.empty());
  EXPECT_EQ(absent.loads_malformed, 0U);

  fake_front_end garbage;
  engine_program babbling(engine(garbage, {"--fault", "garbage-load"}));
  ASSERT_TRUE(garbage.wait_for_ranks(1));
  garbage.add(0, "r", 10, 20);
  ASSERT_TRUE(garbage.run_until([&] { return garbage.ended("r"); }));
  EXPECT_EQ(garbage.loads_malformed, garbage.batches);
  EXPECT_EQ(garbage.requests["r"].tokens.size(), 20U);
}

TEST(engine_process_test, one_rank_alone_can_misbehave) {
  fake_front_end front;
  engine_program process(engine(front, {"--ranks", "2", "--fault", "fail-all", "--fault-rank", "1"}));
  ASSERT_TRUE(front.wait_for_ranks(2));
  front.add(0, "good", 10, 2);
  front.add(1, "bad", 10, 2);
  ASSERT_TRUE(front.run_until([&] { return front.ended("good") && front.ended("bad"); }));
  EXPECT_EQ(front.requests["good"].finish, finish_reason::length);
  EXPECT_EQ(front.requests["bad"].status, 500);
}

TEST(engine_process_test, ranks_in_lockstep_wait_for_the_slowest) {
  fake_front_end front;
  engine_program process(engine(front, {"--ranks", "2", "--lockstep", "--fault", "slow=10", "--fault-rank", "1"}));
  ASSERT_TRUE(front.wait_for_ranks(2));
  const auto start = std::chrono::steady_clock::now();
  front.add(1, "slow", 10, 10);
  front.add(0, "fast", 10, 10);
  ASSERT_TRUE(front.run_until([&] { return front.ended("fast") && front.ended("slow"); }));
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(400));
}

TEST(engine_process_test, it_gives_up_without_an_init_and_without_a_port) {
  fake_front_end front; // never polled: no INIT
  engine_program waiting(engine(front, {"--handshake-wait", "0.2"}));
  EXPECT_EQ(waiting.wait(), engine_exit_handshake_failed);
  engine_program nowhere({RANKWISE_ENGINE_PROGRAM, "engine", "--handshake", "nonsense"});
  EXPECT_EQ(nowhere.wait(), engine_exit_cannot_listen);
  engine_program unknown(engine(front, {"--fault", "sulk"}));
  EXPECT_NE(unknown.wait(), 0);
}

TEST(engine_process_test, an_idle_engine_costs_next_to_nothing) {
  fake_front_end front;
  engine_program process(engine(front, {"--ranks", "8"}));
  ASSERT_TRUE(front.wait_for_ranks(8));
  const auto cpu_ticks = [&] {
    std::ifstream stat("/proc/" + std::to_string(process.pid()) + "/stat");
    std::string word;
    long user = 0;
    long system = 0;
    for (int i = 1; i <= 13; ++i) {
      stat >> word;
    }
    stat >> user >> system;
    return user + system;
  };
  const long before = cpu_ticks();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LE(cpu_ticks() - before, 1); // a tick is 10 ms
}

// -- prefill and decode in two processes
// --------------------------------------------------------------------------------

/// A base port that is free now for two prefill ranks.
std::uint16_t free_port_pair() {
  zmq::context_t context;
  for (;;) {
    zmq::socket_t first(context, zmq::socket_type::router);
    first.bind("tcp://127.0.0.1:*");
    const std::string endpoint = first.get(zmq::sockopt::last_endpoint);
    const int port = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
    try {
      zmq::socket_t second(context, zmq::socket_type::router);
      second.bind("tcp://127.0.0.1:" + std::to_string(port + 1));
      return static_cast<std::uint16_t>(port);
    } catch (const zmq::error_t&) {
      continue;
    }
  }
}

class prefill_and_decode : public testing::Test {
 protected:
  prefill_and_decode()
      : port_(free_port_pair()),
        prefill_(engine(prefill_front_, {"--ranks", "2", "--role", "prefill", "--bootstrap-port", std::to_string(port_),
                                         "--pd-wait", "1"})),
        decode_(engine(decode_front_, {"--ranks", "2", "--role", "decode", "--prefill-ranks", "2", "--pd-wait", "1"})) {
  }

  void SetUp() override {
    ASSERT_TRUE(prefill_front_.wait_for_ranks(2));
    ASSERT_TRUE(decode_front_.wait_for_ranks(2));
  }
  [[nodiscard]] core::bootstrap_info in_room(std::int64_t room) const { return {"127.0.0.1", port_, room}; }
  template <class Done>
  bool run_until(Done done) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done() && std::chrono::steady_clock::now() < until) {
      prefill_front_.run_until([] { return false; }, std::chrono::milliseconds(5));
      decode_front_.run_until([] { return false; }, std::chrono::milliseconds(5));
    }
    return done();
  }

  std::uint16_t port_;
  fake_front_end prefill_front_;
  fake_front_end decode_front_;
  engine_program prefill_;
  engine_program decode_;
};

TEST_F(prefill_and_decode, a_pair_hands_its_kv_over_whichever_leg_comes_first) {
  for (std::int64_t room = 0; room < 10; ++room) {
    const std::string rid = "r" + std::to_string(room);
    const auto prefill_rank = static_cast<std::uint16_t>(room % 2);
    if (room < 5) {
      prefill_front_.add(prefill_rank, rid, 500, 8, in_room(room));
      decode_front_.add(1, rid, 500, 8, in_room(room));
    } else {
      decode_front_.add(0, rid, 500, 8, in_room(room));
      prefill_front_.add(prefill_rank, rid, 500, 8, in_room(room));
    }
  }
  ASSERT_TRUE(run_until([&] {
    for (int room = 0; room < 10; ++room) {
      const std::string rid = "r" + std::to_string(room);
      if (!decode_front_.ended(rid) || !prefill_front_.ended(rid)) {
        return false;
      }
    }
    return true;
  }));
  for (const auto& [rid, request] : decode_front_.requests) {
    EXPECT_EQ(request.finish, finish_reason::length) << rid << " " << request.message;
    EXPECT_EQ(request.tokens.size(), 8U);
    EXPECT_EQ(prefill_front_.requests[rid].tokens.size(), 1U);
  }
}

TEST_F(prefill_and_decode, a_wrong_or_missing_partner_ends_in_the_engines_own_error) {
  prefill_front_.add(1, "wrong rank", 100, 8, in_room(4)); // 4 mod 2 is rank 0, which decode asks
  decode_front_.add(0, "wrong rank", 100, 8, in_room(4));
  decode_front_.add(0, "no such host", 100, 8, core::bootstrap_info{"not a host", port_, 6});
  prefill_front_.add(0, "alone", 100, 8, in_room(8));
  ASSERT_TRUE(run_until([&] {
    return decode_front_.ended("wrong rank") && decode_front_.ended("no such host") &&
           prefill_front_.ended("wrong rank") && prefill_front_.ended("alone");
  }));
  EXPECT_EQ(decode_front_.requests["wrong rank"].status, 500);
  EXPECT_EQ(decode_front_.requests["no such host"].status, 500);
  EXPECT_EQ(prefill_front_.requests["alone"].status, 500);
  EXPECT_EQ(prefill_front_.requests["wrong rank"].status, 500);
}

} // namespace
} // namespace rankwise::app
