// Clients that ask for nothing and never stop: each flood ends its connection with ENHANCE_YOUR_CALM, is counted by its
// kind, and another connection is served meanwhile. And clients that look like one and are none.

#include "frame_client.hpp"
#include "raw_client.hpp"
#include "small_server.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace rankwise::testing {
namespace {

using namespace std::chrono_literals;
using io::grpc::flood_guard;
using io::grpc::flood_kind;
using io::grpc::flood_limits;
using io::grpc::server_options;

constexpr std::uint32_t enhance_your_calm = 11;

std::string many(const std::string& bytes, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += bytes;
  }
  return out;
}

/// HEADERS of a call and its RST_STREAM, for `calls` streams from stream 1 on.
std::string rapid_reset(int calls) {
  std::string out;
  for (int i = 0; i < calls; ++i) {
    const auto stream = static_cast<std::uint32_t>(2 * i + 1);
    out +=
        frame(headers_frame, end_headers, stream, request_block(hold_path)) + frame(rst_stream, 0, stream, number(8));
  }
  return out;
}

/// Calls that break a rule of HTTP/2, so that the server resets them by itself.
std::string made_resets(int calls) {
  std::string out;
  for (int i = 0; i < calls; ++i) {
    out += frame(headers_frame, end_headers, static_cast<std::uint32_t>(2 * i + 1),
                 request_block(hold_path, {{"Upper", "x"}}));
  }
  return out;
}

struct flood {
  std::string name;
  std::string bytes;
  flood_kind kind;
  std::string debug_data;
};

std::vector<flood> floods() {
  const auto open_1 = frame(headers_frame, end_headers, 1, request_block(hold_path));
  return {
      {"SETTINGS", many(frame(settings, 0, 0, ""), 200), flood_kind::control, "too_many_control_frames"},
      {"PING", many(frame(ping, 0, 0, "12345678"), 10), flood_kind::pings, "too_many_pings"},
      {"answers to PINGs that nobody sent", many(frame(ping, end_stream, 0, "12345678"), 200), flood_kind::control,
       "too_many_control_frames"},
      {"empty DATA", open_1 + many(frame(data, 0, 1, ""), 2000), flood_kind::empty_data, "too_many_empty_data_frames"},
      {"DATA of padding", open_1 + many(frame(data, padded, 1, std::string("\x01\x00", 2)), 2000),
       flood_kind::empty_data, "too_many_empty_data_frames"},
      {"PRIORITY", many(frame(priority, 0, 1, std::string("\0\0\0\3\1", 5)), 2000), flood_kind::priorities,
       "too_many_priorities"},
      {"WINDOW_UPDATE", many(frame(window_update, 0, 0, number(1)), 2000), flood_kind::window_updates,
       "too_many_window_updates"},
      {"rapid reset", rapid_reset(150), flood_kind::resets, "too_many_resets"},
      {"resets that the server is made to send", made_resets(150), flood_kind::resets, "too_many_resets"},
  };
}

TEST(grpc_floods, each_is_ended_with_enhance_your_calm_and_disturbs_nobody_else) {
  server_options options;
  options.floods.window_updates = {1'000, 10};
  options.floods.resets = {100, 10};
  const auto server = start_small_server(options);
  raw_client witness{server->port()};
  const auto held = witness.open(hold_path, framed(""));
  for (const auto& f : floods()) {
    const auto before = server->counters().floods[static_cast<std::size_t>(f.kind)];
    frame_client client{server->port()};
    client.send(f.bytes);
    const auto got = client.until([](const seen_frame& s) { return s.type == goaway; });
    ASSERT_TRUE(got) << f.name;
    EXPECT_EQ(got->code(), enhance_your_calm) << f.name;
    EXPECT_EQ(got->debug_data(), f.debug_data) << f.name;
    const auto second = client.until([](const seen_frame& s) { return s.type == goaway; });
    EXPECT_FALSE(second) << f.name << ": clients report the last GOAWAY, which has to be the one with the name";
    EXPECT_TRUE(client.closed()) << f.name;
    EXPECT_EQ(server->counters().floods[static_cast<std::size_t>(f.kind)], before + 1) << f.name;
    EXPECT_EQ(witness.wait(witness.open(echo_path, framed("x"))).status(), 0) << f.name;
  }
  EXPECT_FALSE(witness.of(held).closed);
  EXPECT_TRUE(eventually([&] { return server->counters().calls_now == 1; })) << "only the witness's";
}

TEST(grpc_floods, a_client_that_floods_without_reading_is_cut_while_others_are_served) {
  server_options options;
  options.floods.resets = {1U << 30, 0};
  options.floods.unread_frames_max = 5'000;
  options.message_bytes_max = 1 << 20;
  const auto server = start_small_server(options);
  std::atomic<bool> ended{false};
  std::thread flooder{[&] {
    frame_client client{server->port()};
    std::uint32_t stream = 1;
    const auto until = std::chrono::steady_clock::now() + 20s;
    // Every call is refused with a status, and none of the statuses is read.
    for (; std::chrono::steady_clock::now() < until; stream += 2) {
      if (!client.send(frame(headers_frame, end_headers, stream, request_block("/no.Such/Method")))) {
        break;
      }
    }
    ended = true;
  }};
  raw_client witness{server->port()};
  while (!ended) {
    const auto began = std::chrono::steady_clock::now();
    ASSERT_EQ(witness.wait(witness.open(echo_path, framed("x"))).status(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 2s); // on a machine that does other work, under ASan
  }
  flooder.join();
  EXPECT_TRUE(eventually([&] { return server->counters().connections_now == 1; }));
  EXPECT_EQ(server->counters().floods[static_cast<std::size_t>(flood_kind::unread)], 1U);
}

TEST(grpc_floods, a_client_that_keeps_alive_slowly_enough_is_never_ended) {
  server_options options;
  options.floods.ping_interval_min = 20ms;
  const auto server = start_small_server(options);
  raw_client client{server->port()};
  const auto held = client.open(hold_path, framed(""));
  for (int i = 1; i <= 20; ++i) {
    client.ping();
    ASSERT_TRUE(client.pump([&] { return client.pongs() == i; }));
    std::this_thread::sleep_for(25ms);
  }
  EXPECT_EQ(client.goaways(), 0);
  EXPECT_FALSE(client.of(held).closed);
}

TEST(grpc_floods, a_ping_for_every_answer_is_no_flood) {
  const auto server = start_small_server();
  raw_client client{server->port()};
  for (int i = 1; i <= 50; ++i) {
    ASSERT_EQ(client.wait(client.open(echo_path, framed("x"))).status(), 0);
    client.ping();
    ASSERT_TRUE(client.pump([&] { return client.pongs() == i; })) << i;
  }
}

TEST(grpc_floods, a_client_that_cancels_thousands_of_calls_at_once_is_no_flood) {
  const auto server = start_small_server();
  raw_client client{server->port()};
  for (int round = 0; round < 2; ++round) {
    std::vector<std::int32_t> open;
    for (int i = 0; i < 4000; ++i) {
      open.push_back(client.open(hold_path, framed("")));
    }
    ASSERT_TRUE(client.pump([&] { return server->counters().calls_now == 4000; }, 20s));
    for (const auto id : open) {
      client.reset(id);
    }
    ASSERT_TRUE(client.pump([&] { return server->counters().calls_now == 0; }, 20s));
  }
  EXPECT_EQ(client.wait(client.open(echo_path, framed("x"))).status(), 0);
}

// --- the guard alone, with a clock of its own
// ---------------------------------------------------------------------------------

constexpr flood_guard::time_point start{};

TEST(flood_guard_test, pings_within_the_interval_are_strikes_and_the_third_is_too_many) {
  const flood_limits limits;
  flood_guard guard{limits, start};
  EXPECT_TRUE(guard.took_ping(start));
  EXPECT_TRUE(guard.took_ping(start + 1s));
  EXPECT_TRUE(guard.took_ping(start + 2s));
  EXPECT_FALSE(guard.took_ping(start + 3s));
}

TEST(flood_guard_test, pings_ten_seconds_apart_go_on_for_ever) {
  const flood_limits limits;
  flood_guard guard{limits, start};
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(guard.took_ping(start + i * 10s - (i % 2) * 900ms));
  }
}

TEST(flood_guard_test, what_is_sent_to_the_client_forgives_its_strikes) {
  const flood_limits limits;
  flood_guard guard{limits, start};
  for (int i = 0; i < 100; ++i) {
    guard.sent_to_client();
    ASSERT_TRUE(guard.took_ping(start));
    ASSERT_TRUE(guard.took_ping(start));
    ASSERT_TRUE(guard.took_ping(start));
  }
  EXPECT_FALSE(guard.took_ping(start));
}

TEST(flood_guard_test, an_allowance_is_its_burst_and_then_its_rate) {
  flood_limits limits;
  limits.control = {5, 10};
  flood_guard guard{limits, start};
  const auto taken = [&](flood_guard::time_point now) {
    int out = 0;
    while (guard.took_frame(flood_kind::control, now)) {
      ++out;
    }
    return out;
  };
  EXPECT_EQ(taken(start), 5);
  EXPECT_EQ(taken(start + 99ms), 0);
  EXPECT_EQ(taken(start + 100ms), 1);
  EXPECT_EQ(taken(start + 300ms), 2);
  EXPECT_EQ(taken(start + 1h), 5) << "never more than the burst";
}

TEST(flood_guard_test, each_data_frame_sent_allows_four_window_updates) {
  flood_limits limits;
  limits.window_updates = {10, 0};
  flood_guard guard{limits, start};
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(guard.took_frame(flood_kind::window_updates, start));
  }
  EXPECT_FALSE(guard.took_frame(flood_kind::window_updates, start));
  guard.sent_to_client();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(guard.took_frame(flood_kind::window_updates, start));
  }
  EXPECT_FALSE(guard.took_frame(flood_kind::window_updates, start));
}

TEST(flood_guard_test, the_kinds_have_budgets_of_their_own) {
  flood_limits limits;
  limits.control = {1, 0};
  limits.priorities = {1, 0};
  flood_guard guard{limits, start};
  EXPECT_TRUE(guard.took_frame(flood_kind::control, start));
  EXPECT_FALSE(guard.took_frame(flood_kind::control, start));
  EXPECT_TRUE(guard.took_frame(flood_kind::priorities, start));
}

} // namespace
} // namespace rankwise::testing
