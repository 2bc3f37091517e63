// Much, slow and many: the largest message, clients that send or read slowly, and ten thousand connections.

#include "frame_client.hpp"
#include "raw_client.hpp"
#include "small_server.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>

namespace rankwise::testing {
namespace {

using namespace std::chrono_literals;
using io::grpc::server_options;

constexpr std::size_t mib = std::size_t{1} << 20;

// AddressSanitizer keeps freed memory: its process says nothing about ours.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool memory_is_ours = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool memory_is_ours = false;
#else
constexpr bool memory_is_ours = true;
#endif
#else
constexpr bool memory_is_ours = true;
#endif

std::size_t resident_bytes() {
  std::size_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(grpc_sizes, a_message_of_256_mib_is_taken_and_one_byte_more_is_refused) {
  const auto server = start_small_server();
  raw_client client{server->port()};
  raw_client witness{server->port()};
  const auto large = client.open(size_path, framed(std::string(256 * mib, 'm')));
  std::size_t served = 0;
  while (!client.of(large).closed) {
    ASSERT_FALSE(client.connection_closed());
    client.pump([&] { return client.of(large).closed; }, 100ms);
    const auto began = std::chrono::steady_clock::now();
    ASSERT_EQ(witness.wait(witness.open(echo_path, framed("x"))).status(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 1s);
    ++served;
  }
  EXPECT_EQ(client.of(large).status(), 0) << client.of(large).message();
  EXPECT_EQ(client.of(large).messages().at(0), std::to_string(256 * mib));
  EXPECT_GT(served, 0U);
  std::string announced = framed(std::string(256 * mib + 1, 'm'));
  announced.resize(100);
  const auto& refused = client.wait(client.open(size_path, announced, false));
  EXPECT_EQ(refused.status(), 8);
  EXPECT_EQ(refused.message(), "request message: 268435457 bytes, the limit is 268435456");
}

TEST(grpc_sizes, a_sender_of_single_bytes_is_served_however_slow_while_each_comes_in_time) {
  server_options options;
  options.request_stall_max = 150ms;
  const auto server = start_small_server(options);
  frame_client client{server->port()};
  client.send(frame(headers_frame, end_headers, 1, request_block(echo_path)));
  const auto bytes = framed("slowly");
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::this_thread::sleep_for(40ms); // 440 ms in all
    client.send(frame(data, i + 1 == bytes.size() ? end_stream : 0, 1, bytes.substr(i, 1)));
  }
  const auto answer = client.until([](const seen_frame& f) { return f.type == data; });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->payload, bytes);
}

TEST(grpc_sizes, a_request_that_never_becomes_whole_is_ended_however_steadily_it_comes) {
  server_options options;
  options.request_stall_max = 150ms;
  options.request_whole_max = 300ms;
  const auto server = start_small_server(options);
  raw_client client{server->port()};
  const auto id = client.open(echo_path, framed(std::string(1000, 'x')).substr(0, 5), false);
  for (int i = 0; i < 100 && !client.of(id).closed; ++i) {
    client.send_more(id, "x", false);
    client.pump([&] { return client.of(id).closed; }, 20ms);
  }
  ASSERT_TRUE(client.of(id).closed);
  EXPECT_EQ(client.of(id).status(), 4) << client.of(id).message();
  EXPECT_EQ(client.wait(client.open(echo_path, framed("x"))).status(), 0);
}

TEST(grpc_sizes, streams_that_the_client_has_half_closed_wait_beyond_every_stall_limit) {
  server_options options;
  options.request_stall_max = options.write_stall_max = options.request_whole_max = 50ms;
  const auto server = start_small_server(options);
  raw_client client{server->port()};
  std::vector<std::int32_t> held;
  for (int i = 0; i < 500; ++i) {
    held.push_back(client.open(hold_path, framed("")));
  }
  client.pump([] { return false; }, 400ms);
  for (const auto id : held) {
    ASSERT_FALSE(client.of(id).closed);
  }
  EXPECT_EQ(server->counters().calls_now, 500U);
}

TEST(grpc_sizes, a_connection_that_the_client_half_closes_ends_with_its_calls) {
  const auto server = start_small_server();
  frame_client client{server->port()};
  client.send(frame(headers_frame, end_headers, 1, request_block(hold_path)) + frame(data, end_stream, 1, framed("")));
  ASSERT_TRUE(eventually([&] { return server->counters().calls_now == 1; }));
  ::shutdown(client.fd(), SHUT_WR);
  EXPECT_TRUE(eventually([&] { return server->counters().connections_now == 0; }));
  EXPECT_EQ(server->counters().calls_now, 0U);
}

TEST(grpc_sizes, a_stream_that_is_not_read_holds_up_neither_its_connection_nor_another) {
  server_options options;
  options.write_stall_max = 400ms;
  const auto server = start_small_server(options);
  raw_client client{server->port(), client_settings{100'000, false}}; // windows are opened by hand
  raw_client other{server->port()};
  const auto before = resident_bytes();
  client.window_update(0, 1 << 30);
  const auto poured = client.open(pour_path, framed("10000"));
  while (!client.of(poured).closed) {
    const auto echoed = client.open(echo_path, framed("x"));
    ASSERT_EQ(client.wait(echoed).status(), 0);
    ASSERT_EQ(other.wait(other.open(echo_path, framed("x"))).status(), 0);
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_EQ(client.of(poured).reset_code, static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_LE(client.of(poured).data.size(), 100'000U) << "the stream's window";
  EXPECT_LT(server->counters().messages_written, 2'000U) << "messages of 10 kB, and the echoes";
  if (memory_is_ours) {
    EXPECT_LT(resident_bytes(), before + 16 * mib);
  }
}

TEST(grpc_sizes, a_client_that_reads_nothing_holds_up_nobody_and_costs_little_memory) {
  server_options options;
  options.write_stall_max = 600ms;
  const auto server = start_small_server(options);
  frame_client deaf{server->port()};
  const auto before = resident_bytes();
  deaf.send(frame(settings, 0, 0, setting(4, 0x7fffffff)) + frame(window_update, 0, 0, number(0x7fff0000)) +
            whole_call(1, pour_path, "1000000") + whole_call(3, pour_path, "1000000"));
  raw_client other{server->port()};
  ASSERT_TRUE(eventually([&] {
    const auto c = server->counters();
    return c.calls_now == 2 && c.connections_now == 2;
  }));
  while (server->counters().connections_now == 2) {
    const auto began = std::chrono::steady_clock::now();
    ASSERT_EQ(other.wait(other.open(echo_path, framed("x"))).status(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 300ms);
    if (memory_is_ours) {
      ASSERT_LT(resident_bytes(), before + 24 * mib);
    }
    std::this_thread::sleep_for(1ms); // the client remembers every stream, and that is in the memory measured
  }
  EXPECT_EQ(server->counters().calls_cancelled, 2U);
}

// --- connections
// ------------------------------------------------------------------------------------------------------

/// A child process that opens connections and holds them until its pipe is closed, so that one process's limit on file
/// descriptors counts one end of each.
class idle_connections {
 public:
  idle_connections() {
    if (::pipe(to_child_) != 0 || ::pipe(from_child_) != 0) {
      throw std::runtime_error("no pipes");
    }
    child_ = ::fork();
    if (child_ == 0) {
      ::close(to_child_[1]);
      ::close(from_child_[0]);
      hold();
      ::_exit(0);
    }
    ::close(to_child_[0]);
    ::close(from_child_[1]);
  }
  idle_connections(const idle_connections&) = delete;
  idle_connections& operator=(const idle_connections&) = delete;
  ~idle_connections() {
    release();
    ::close(from_child_[0]);
  }

  /// How many were opened, and were greeted by the server.
  [[nodiscard]] std::uint32_t open(std::uint16_t port, std::uint32_t count) {
    const std::array<std::uint32_t, 2> order{port, count};
    std::uint32_t opened = 0;
    if (::write(to_child_[1], order.data(), sizeof(order)) != static_cast<ssize_t>(sizeof(order)) ||
        ::read(from_child_[0], &opened, sizeof(opened)) != static_cast<ssize_t>(sizeof(opened))) {
      return 0;
    }
    return opened;
  }
  void release() {
    if (child_ > 0) {
      ::close(to_child_[1]);
      ::waitpid(child_, nullptr, 0);
      child_ = 0;
    }
  }

 private:
  void hold() {
    std::array<std::uint32_t, 2> order{};
    if (::read(to_child_[0], order.data(), sizeof(order)) != static_cast<ssize_t>(sizeof(order))) {
      return;
    }
    std::vector<std::unique_ptr<frame_client>> clients;
    std::uint32_t greeted = 0;
    try {
      for (std::uint32_t i = 0; i < order[1]; ++i) {
        clients.push_back(std::make_unique<frame_client>(static_cast<std::uint16_t>(order[0])));
      }
      for (auto& client : clients) {
        greeted += client->next(10s) ? 1U : 0U;
      }
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    if (::write(from_child_[1], &greeted, sizeof(greeted)) != static_cast<ssize_t>(sizeof(greeted))) {
      return;
    }
    char end = 0;
    [[maybe_unused]] const auto got = ::read(to_child_[0], &end, 1);
  }

  int to_child_[2]{};
  int from_child_[2]{};
  pid_t child_ = 0;
};

TEST(grpc_sizes, ten_thousand_idle_connections_are_held_and_a_client_beside_them_is_served) {
  constexpr std::uint32_t wanted = 10'000;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto before = limit;
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, std::min<rlim_t>(wanted + 1'000, limit.rlim_max));
  if (limit.rlim_cur < wanted + 1'000 || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    GTEST_SKIP() << "10,000 connections need 11,000 file descriptors, the limit is " << limit.rlim_cur;
  }
  idle_connections idle;
  server_options options;
  options.connections_max = wanted + 10;
  options.preface_max = 60s;
  const auto server = start_small_server(options);
  raw_client beside{server->port()};
  ASSERT_EQ(beside.wait(beside.open(echo_path, framed("x"))).status(), 0);
  const auto resident = resident_bytes();
  ASSERT_EQ(idle.open(server->port(), wanted), wanted);
  ASSERT_TRUE(eventually([&] { return server->counters().connections_now == wanted + 1; }));
  const auto each = (resident_bytes() - resident) / wanted;
  std::printf("memory of an idle connection: %zu bytes\n", each);
  RecordProperty("bytes_per_idle_connection", static_cast<int>(each));
  EXPECT_LT(each, 40'000U);
  for (int i = 0; i < 200; ++i) {
    const auto began = std::chrono::steady_clock::now();
    ASSERT_EQ(beside.wait(beside.open(echo_path, framed("x"))).status(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 500ms);
  }
  idle.release();
  EXPECT_TRUE(eventually([&] { return server->counters().connections_now == 1; }, 10s));
  ::setrlimit(RLIMIT_NOFILE, &before);
}

} // namespace
} // namespace rankwise::testing
