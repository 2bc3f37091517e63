#include "io/grpc/server.hpp"
#include "raw_client.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

namespace rankwise::io::grpc {
namespace {

using namespace std::chrono_literals;
using testing::client_settings;
using testing::framed;
using testing::raw_client;

constexpr std::string_view echo = "/test.Service/Echo";
constexpr std::string_view feed = "/test.Service/Feed";
constexpr std::string_view fail_in_pull = "/test.Service/FailInPull";
constexpr std::string_view fail_at_start = "/test.Service/FailAtStart";
constexpr std::string_view chat = "/test.Service/Chat";

/// What the handlers of a test say and are told; written on the I/O thread, read by the test.
struct record {
  std::mutex mutex;
  std::vector<call_id> open;
  std::vector<cancel_reason> cancels;
  std::deque<std::string> feed; ///< Messages for the one Feed call.
  bool feed_ends = false;
  status feed_end;
  std::atomic<int> pulls{0};
  std::atomic<int> alive{0};
};

class feed_call final : public call_handler {
 public:
  feed_call(record& log, call& c) : log_(log) {
    const std::lock_guard lock{log_.mutex};
    log_.open.push_back(c.id());
    log_.alive.fetch_add(1);
    c.resume();
  }
  ~feed_call() override { log_.alive.fetch_sub(1); }

  pull_result pull(std::string& out, status& end) override {
    const std::lock_guard lock{log_.mutex};
    log_.pulls.fetch_add(1);
    if (!log_.feed.empty()) {
      out += log_.feed.front();
      log_.feed.pop_front();
      return pull_result::message;
    }
    if (log_.feed_ends) {
      end = log_.feed_end;
      return pull_result::finished;
    }
    return pull_result::nothing_now;
  }

  void on_cancel(cancel_reason reason) noexcept override {
    const std::lock_guard lock{log_.mutex};
    log_.cancels.push_back(reason);
  }

 private:
  record& log_;
};

class throwing_call final : public call_handler {
 public:
  explicit throwing_call(record& log) : log_(log) {}
  pull_result pull(std::string&, status&) override { throw std::runtime_error("pull went wrong"); }
  void on_cancel(cancel_reason reason) noexcept override {
    const std::lock_guard lock{log_.mutex};
    log_.cancels.push_back(reason);
  }

 private:
  record& log_;
};

class chat_call final : public call_handler {
 public:
  explicit chat_call(call& c) : call_(c) {}
  void on_message(std::string_view bytes) override {
    answers_.push_back("you said " + std::string{bytes});
    call_.resume();
  }
  void on_half_close() override {
    closed_ = true;
    call_.resume();
  }
  pull_result pull(std::string& out, status&) override {
    if (answers_.empty()) {
      return closed_ ? pull_result::finished : pull_result::nothing_now;
    }
    out += answers_.front();
    answers_.pop_front();
    return pull_result::message;
  }

 private:
  call& call_;
  std::deque<std::string> answers_;
  bool closed_ = false;
};

class grpc_server : public ::testing::Test {
 protected:
  void start(server_options options = {}) {
    server_ = std::make_unique<server>(options);
    server_->add_unary(std::string{echo}, [](call&, std::string_view request) -> tl::expected<std::string, status> {
      if (request == "fail") {
        return tl::unexpected(status{status_code::failed_precondition, "50% of\nit"});
      }
      if (request == "throw") {
        throw std::runtime_error("handler went wrong");
      }
      return std::string{request};
    });
    server_->add_streaming(std::string{feed},
                           [this](call& c, std::string_view) -> tl::expected<std::unique_ptr<call_handler>, status> {
                             return std::make_unique<feed_call>(log_, c);
                           });
    server_->add_streaming(std::string{fail_in_pull},
                           [this](call& c, std::string_view) -> tl::expected<std::unique_ptr<call_handler>, status> {
                             c.resume();
                             return std::make_unique<throwing_call>(log_);
                           });
    server_->add_streaming(std::string{fail_at_start},
                           [](call&, std::string_view) -> tl::expected<std::unique_ptr<call_handler>, status> {
                             return tl::unexpected(status{status_code::resource_exhausted, "full"});
                           });
    server_->add_bidirectional(std::string{chat}, [](call& c) -> tl::expected<std::unique_ptr<call_handler>, status> {
      return std::make_unique<chat_call>(c);
    });
    server_->on_wake([this] {
      woken_.fetch_add(1);
      const std::lock_guard lock{log_.mutex};
      for (const auto id : log_.open) {
        if (server_->find(id) != nullptr) {
          resume_by_post(id);
        }
      }
    });
    const auto started = server_->start();
    ASSERT_TRUE(started) << started.error();
  }

  /// Messages for the open Feed call, then a wake.
  void push(std::vector<std::string> messages, bool end = false, status with = {}) {
    {
      const std::lock_guard lock{log_.mutex};
      log_.feed.insert(log_.feed.end(), messages.begin(), messages.end());
      log_.feed_ends = end;
      log_.feed_end = std::move(with);
    }
    server_->wake();
  }

  std::vector<cancel_reason> cancels_within(std::chrono::milliseconds limit, std::size_t wanted = 1) {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (;;) {
      {
        const std::lock_guard lock{log_.mutex};
        if (log_.cancels.size() >= wanted || std::chrono::steady_clock::now() > until) {
          return log_.cancels;
        }
      }
      std::this_thread::sleep_for(2ms);
    }
  }

  template <class F>
  bool eventually(F&& f, std::chrono::milliseconds limit = 3000ms) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!f()) {
      if (std::chrono::steady_clock::now() > until) {
        return false;
      }
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }

  record log_;
  std::atomic<int> woken_{0};
  std::unique_ptr<server> server_; // last: its thread uses the rest

 private:
  // The handlers keep no call object of their own here, so that find() is what the tests exercise.
  void resume_by_post(call_id id) { server_->resume(id); }
};

// --- unary and framing
// ------------------------------------------------------------------------------------------------

TEST_F(grpc_server, answers_a_unary_call_with_headers_message_and_trailers) {
  start();
  raw_client client{server_->port()};
  const auto& in = client.wait(client.open(echo, framed("hello")));
  EXPECT_EQ(in.headers.at(":status"), "200");
  EXPECT_EQ(in.headers.at("content-type"), "application/grpc");
  EXPECT_EQ(in.messages(), std::vector<std::string>{"hello"});
  EXPECT_EQ(in.trailers.at("grpc-status"), "0");
  EXPECT_EQ(in.trailers.count("grpc-message"), 0U);
}

TEST_F(grpc_server, an_empty_message_is_a_message) {
  start();
  raw_client client{server_->port()};
  const auto& in = client.wait(client.open(echo, framed("")));
  EXPECT_EQ(in.status(), 0);
  EXPECT_EQ(in.messages(), std::vector<std::string>{""});
}

TEST_F(grpc_server, a_message_cut_into_single_bytes_arrives_whole) {
  start();
  raw_client client{server_->port()};
  const std::string text(300, 'x');
  EXPECT_EQ(client.wait(client.open(echo, framed(text), true, {}, 1)).messages(), std::vector<std::string>{text});
}

TEST_F(grpc_server, interleaved_requests_each_get_their_own_answer) {
  start();
  raw_client client{server_->port()};
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(client.open(echo, framed("request " + std::to_string(i) + std::string(2000, '.')), true, {}, 100));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(client.wait(ids[i]).messages().at(0), "request " + std::to_string(i) + std::string(2000, '.'));
  }
}

TEST_F(grpc_server, a_request_in_two_halves_with_time_between_is_one_request) {
  start();
  raw_client client{server_->port()};
  const auto bytes = framed("two halves");
  const auto id = client.open(echo, bytes.substr(0, 7), false);
  EXPECT_FALSE(client.pump([&] { return client.of(id).closed; }, 50ms));
  client.send_more(id, bytes.substr(7), true);
  EXPECT_EQ(client.wait(id).messages(), std::vector<std::string>{"two halves"});
}

TEST_F(grpc_server, a_message_of_64_mib_goes_both_ways) {
  start();
  raw_client client{server_->port()};
  std::string big(std::size_t{64} << 20, 'b');
  big[12345] = 'x';
  const auto& in = client.wait(client.open(echo, framed(big)), 30s);
  ASSERT_EQ(in.status(), 0);
  const auto got = in.messages();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_TRUE(got[0] == big);
}

TEST_F(grpc_server, a_bidirectional_call_answers_message_by_message) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(chat, framed("one"), false);
  ASSERT_TRUE(client.pump([&] { return client.of(id).messages().size() == 1; }));
  client.send_more(id, framed("two") + framed("three"), true);
  EXPECT_EQ(client.wait(id).messages(), (std::vector<std::string>{"you said one", "you said two", "you said three"}));
  EXPECT_EQ(client.of(id).status(), 0);
}

// --- errors
// -----------------------------------------------------------------------------------------------------------

TEST_F(grpc_server, an_error_before_any_message_is_trailers_only) {
  start();
  raw_client client{server_->port()};
  const auto& in = client.wait(client.open(echo, framed("fail")));
  EXPECT_EQ(in.headers.at(":status"), "200");
  EXPECT_EQ(in.headers.at("grpc-status"), "9");
  EXPECT_EQ(in.headers.at("grpc-message"), "50%25 of%0Ait");
  EXPECT_TRUE(in.trailers.empty());
  EXPECT_EQ(in.data_frames, 0U);
}

TEST_F(grpc_server, a_throwing_handler_is_internal_and_the_server_goes_on) {
  start();
  raw_client client{server_->port()};
  const auto& in = client.wait(client.open(echo, framed("throw")));
  EXPECT_EQ(in.status(), 13);
  EXPECT_EQ(in.message(), "handler went wrong");
  EXPECT_EQ(client.wait(client.open(echo, framed("still there"))).status(), 0);
  EXPECT_EQ(server_->counters().handler_exceptions, 1U);
}

TEST_F(grpc_server, a_throwing_pull_is_internal_and_cancels_the_handler) {
  start();
  raw_client client{server_->port()};
  EXPECT_EQ(client.wait(client.open(fail_in_pull, framed(""))).status(), 13);
  EXPECT_EQ(cancels_within(1s), std::vector<cancel_reason>{cancel_reason::internal_error});
}

TEST_F(grpc_server, a_streaming_call_can_be_refused_at_its_start) {
  start();
  raw_client client{server_->port()};
  const auto& in = client.wait(client.open(fail_at_start, framed("")));
  EXPECT_EQ(in.status(), 8);
  EXPECT_EQ(in.message(), "full");
}

TEST_F(grpc_server, bad_requests_end_with_the_status_that_the_protocol_names) {
  server_options options;
  options.message_bytes_max = 1000;
  start(options);
  raw_client client{server_->port()};
  struct row {
    std::string name;
    std::string path;
    std::string body;
    int status;
  };
  const std::vector<row> rows{
      {"unknown method", "/test.Service/Nothing", framed("x"), 12},
      {"no message", std::string{echo}, "", 12},
      {"two messages", std::string{echo}, framed("a") + framed("b"), 12},
      {"half a prefix", std::string{echo}, std::string(3, '\0'), 13},
      {"half a message", std::string{echo}, framed("abcdef").substr(0, 8), 13},
      {"compressed by nothing", std::string{echo}, framed("x", 1), 13},
      {"flag 7", std::string{echo}, framed("x", 7), 13},
      {"too large", std::string{echo}, framed(std::string(1001, 'x')), 8},
  };
  for (const auto& r : rows) {
    const auto& in = client.wait(client.open(r.path, r.body));
    EXPECT_EQ(in.status(), r.status) << r.name << ": " << in.message();
    EXPECT_EQ(in.headers.at(":status"), "200") << r.name;
  }
  EXPECT_EQ(client.wait(client.open(echo, framed(std::string(1000, 'x')))).status(), 0);
  EXPECT_EQ(server_->counters().calls_refused, rows.size());
}

TEST_F(grpc_server, a_compressed_message_is_told_which_encodings_there_are) {
  start();
  raw_client client{server_->port()};
  const auto& in = client.wait(client.open(echo, framed("x", 1), true, {{"grpc-encoding", "gzip"}}));
  EXPECT_EQ(in.status(), 12);
  EXPECT_EQ(in.headers.at("grpc-message"), "compressed request messages are not supported: grpc-encoding is gzip");
  EXPECT_EQ(in.headers.at("grpc-accept-encoding"), "identity");
  EXPECT_EQ(client.wait(client.open(echo, framed("x", 1), true, {{"grpc-encoding", "identity"}})).status(), 13);
  EXPECT_EQ(client.wait(client.open(echo, framed("x"), true, {{"grpc-encoding", "gzip"}})).status(), 0)
      << "a message may be left as it is";
}

TEST_F(grpc_server, what_is_not_grpc_gets_an_http_status) {
  start();
  raw_client client{server_->port()};
  const auto with = [&](const std::string& method, const std::string& type) {
    return client
        .wait(client.open_with({{":method", method},
                                {":scheme", "http"},
                                {":path", std::string{echo}},
                                {":authority", "t"},
                                {"content-type", type}},
                               "body"))
        .headers.at(":status");
  };
  EXPECT_EQ(with("POST", "application/json"), "415");
  EXPECT_EQ(with("POST", "application/grpc-web"), "415");
  EXPECT_EQ(with("GET", "application/grpc"), "405");
  EXPECT_EQ(with("POST", "application/grpc+proto"), "200");
}

TEST_F(grpc_server, too_many_header_bytes_end_that_call_alone) {
  server_options options;
  options.header_bytes_max = 1000;
  start(options);
  raw_client client{server_->port()};
  EXPECT_EQ(client.wait(client.open(echo, framed("x"), true, {{"big", std::string(1000, 'h')}})).status(), 8);
  EXPECT_EQ(client.wait(client.open(echo, framed("x"))).status(), 0);
}

TEST_F(grpc_server, an_error_before_the_end_of_the_request_stops_the_client) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open("/no.Such/Method", framed("x"), false);
  const auto& in = client.wait(id);
  EXPECT_EQ(in.status(), 12);
  EXPECT_TRUE(in.closed);
  EXPECT_EQ(in.reset_code, static_cast<std::uint32_t>(NGHTTP2_NO_ERROR));
}

TEST_F(grpc_server, bytes_of_unfinished_requests_are_bounded_over_all_connections) {
  server_options options;
  options.unfinished_request_bytes_max = 3 << 20;
  start(options);
  raw_client one{server_->port()};
  raw_client two{server_->port()};
  const auto part = framed(std::string(std::size_t{4} << 20, 'x')).substr(0, 2 << 20);
  const auto first = one.open(echo, part, false);
  const auto second = two.open(echo, part, false);
  ASSERT_TRUE(eventually([&] {
    one.pump([] { return false; }, 5ms);
    two.pump([] { return false; }, 5ms);
    return one.of(first).closed || two.of(second).closed;
  }));
  const auto& refused = one.of(first).closed ? one.of(first) : two.of(second);
  EXPECT_EQ(refused.status(), 8);
  EXPECT_EQ(one.wait(one.open(echo, framed("small"))).status(), 0) << "room is free again";
}

TEST_F(grpc_server, a_request_that_stalls_is_ended) {
  server_options options;
  options.request_stall_max = 100ms;
  start(options);
  raw_client client{server_->port()};
  EXPECT_EQ(client.wait(client.open(echo, framed("abc").substr(0, 6), false), 3s).status(), 4);
}

// --- deadlines and cancels
// --------------------------------------------------------------------------------------------

TEST_F(grpc_server, a_deadline_ends_the_call_and_tells_the_handler_once) {
  start();
  raw_client client{server_->port()};
  const auto began = std::chrono::steady_clock::now();
  const auto& in = client.wait(client.open(feed, framed(""), true, {{"grpc-timeout", "100m"}}));
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(in.status(), 4);
  EXPECT_GE(took, 99ms);
  EXPECT_LT(took, 1s);
  EXPECT_EQ(cancels_within(100ms, 2), std::vector<cancel_reason>{cancel_reason::deadline});
  EXPECT_TRUE(eventually([&] { return log_.alive == 0; }));
}

TEST_F(grpc_server, a_deadline_in_the_middle_of_a_stream_comes_as_trailers) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(feed, framed(""), true, {{"grpc-timeout", "150m"}});
  push({"a"});
  const auto& in = client.wait(id);
  EXPECT_EQ(in.messages(), std::vector<std::string>{"a"});
  EXPECT_EQ(in.trailers.at("grpc-status"), "4");
}

TEST_F(grpc_server, a_deadline_that_has_passed_already_still_gets_its_status) {
  start();
  raw_client client{server_->port()};
  EXPECT_EQ(client.wait(client.open(feed, framed(""), true, {{"grpc-timeout", "0n"}})).status(), 4);
  EXPECT_EQ(client.wait(client.open(feed, framed(""), true, {{"grpc-timeout", "soon"}})).status(), 3);
}

TEST_F(grpc_server, a_reset_stream_cancels_its_handler_alone) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(feed, framed(""));
  push({"a"});
  ASSERT_TRUE(client.pump([&] { return client.of(id).messages().size() == 1; }));
  client.reset(id);
  client.pump([] { return false; }, 20ms);
  EXPECT_EQ(cancels_within(1s), std::vector<cancel_reason>{cancel_reason::client_reset});
  EXPECT_EQ(client.wait(client.open(echo, framed("x"))).status(), 0);
  EXPECT_EQ(server_->counters().resets_received, 1U);
}

TEST_F(grpc_server, a_client_that_goes_away_cancels_all_its_calls) {
  start();
  {
    raw_client client{server_->port()};
    for (int i = 0; i < 3; ++i) {
      client.open(feed, framed(""));
    }
    client.open(echo, framed("abcdef").substr(0, 7), false); // leaves in the middle of a message
    ASSERT_TRUE(client.pump([&] { return log_.alive == 3; }));
  }
  EXPECT_EQ(cancels_within(1s, 3), std::vector<cancel_reason>(3, cancel_reason::connection_closed));
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_now == 0; }));
  EXPECT_EQ(server_->counters().calls_now, 0U);
}

TEST_F(grpc_server, a_finished_call_is_not_cancelled_when_its_client_leaves) {
  start();
  {
    raw_client client{server_->port()};
    const auto id = client.open(feed, framed(""));
    push({"a"}, true);
    EXPECT_EQ(client.wait(id).status(), 0);
  }
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_now == 0; }));
  EXPECT_TRUE(cancels_within(20ms).empty());
}

// --- streaming and flow control
// ---------------------------------------------------------------------------------------

TEST_F(grpc_server, a_stream_delivers_in_order_and_ends_with_the_status_of_the_handler) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(feed, framed(""));
  push({"1", "2"});
  ASSERT_TRUE(client.pump([&] { return client.of(id).messages().size() == 2; }));
  push({"3"}, true, {status_code::aborted, "enough"});
  const auto& in = client.wait(id);
  EXPECT_EQ(in.messages(), (std::vector<std::string>{"1", "2", "3"}));
  EXPECT_EQ(in.trailers.at("grpc-status"), "10");
  EXPECT_EQ(in.trailers.at("grpc-message"), "enough");
}

TEST_F(grpc_server, messages_that_are_ready_together_share_a_frame) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(feed, framed(""));
  ASSERT_TRUE(client.pump([&] { return log_.alive == 1; }));
  push({"1", "2", "3"}, true);
  const auto& in = client.wait(id);
  EXPECT_EQ(in.messages().size(), 3U);
  EXPECT_EQ(in.data_frames, 1U);
}

TEST_F(grpc_server, nothing_is_pulled_for_a_client_whose_window_is_shut) {
  start();
  raw_client client{server_->port(), client_settings{10, false}};
  const auto id = client.open(feed, framed(""));
  ASSERT_TRUE(client.pump([&] { return log_.alive == 1; }));
  push({std::string(100, 'a'), "b", "c"});
  client.pump([&] { return client.of(id).data.size() == 10; });
  client.pump([] { return false; }, 50ms);
  EXPECT_EQ(client.of(id).data.size(), 10U);
  {
    const std::lock_guard lock{log_.mutex};
    EXPECT_EQ(log_.feed.size(), 2U) << "the rest waits with the handler";
  }
  client.window_update(id, 1 << 20);
  push({}, true);
  EXPECT_EQ(client.wait(id).messages(), (std::vector<std::string>{std::string(100, 'a'), "b", "c"}));
}

TEST_F(grpc_server, a_call_ended_while_its_window_is_shut_is_reset) {
  start();
  raw_client client{server_->port(), client_settings{10, false}};
  const auto id = client.open(feed, framed(""), true, {{"grpc-timeout", "100m"}});
  push({std::string(100, 'a')});
  const auto& in = client.wait(id);
  EXPECT_TRUE(in.closed);
  EXPECT_EQ(in.reset_code, static_cast<std::uint32_t>(NGHTTP2_CANCEL));
  EXPECT_EQ(cancels_within(1s), std::vector<cancel_reason>{cancel_reason::deadline});
}

TEST_F(grpc_server, a_client_that_reads_nothing_loses_its_connection) {
  server_options options;
  options.write_stall_max = 200ms;
  start(options);
  raw_client client{server_->port(), client_settings{0x7fffffff, true}};
  const auto id = client.open(feed, framed(""));
  client.window_update(0, 0x7fff0000);
  ASSERT_TRUE(client.pump([&] { return log_.alive == 1; }));
  client.flush();
  push(std::vector<std::string>(200, std::string(1 << 20, 'x'))); // far more than the socket buffers hold
  EXPECT_EQ(cancels_within(5s), std::vector<cancel_reason>{cancel_reason::slow_client});
  static_cast<void>(id);
}

TEST_F(grpc_server, a_stream_whose_window_stays_shut_is_ended) {
  server_options options;
  options.write_stall_max = 200ms;
  options.keepalive_interval = 400ms;
  start(options);
  raw_client client{server_->port(), client_settings{10, false}};
  const auto id = client.open(feed, framed(""));
  push({std::string(100, 'a')}, true);
  EXPECT_EQ(client.wait(id).reset_code, static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_EQ(cancels_within(1s), std::vector<cancel_reason>{cancel_reason::slow_client});
  EXPECT_EQ(client.wait(client.open(echo, framed("x"))).status(), 0) << "the connection goes on";
}

TEST_F(grpc_server, an_answer_larger_than_the_write_buffer_is_whole) {
  server_options options;
  options.write_buffer_bytes_max = 20'000;
  start(options);
  raw_client client{server_->port()};
  const std::string big(3 << 20, 'y');
  EXPECT_TRUE(client.wait(client.open(echo, framed(big))).messages().at(0) == big);
}

// --- connections
// ------------------------------------------------------------------------------------------------------

TEST_F(grpc_server, pings_are_answered) {
  start();
  raw_client client{server_->port()};
  client.ping();
  client.ping();
  EXPECT_TRUE(client.pump([&] { return client.pongs() == 2; }));
}

TEST_F(grpc_server, the_limit_of_streams_is_announced) {
  server_options options;
  options.streams_per_connection_max = 2;
  start(options);
  raw_client client{server_->port()};
  ASSERT_TRUE(client.pump([&] { return client.server_setting(NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS) == 2; }));
}

TEST_F(grpc_server, connections_over_the_limit_are_closed_at_once) {
  server_options options;
  options.connections_max = 1;
  start(options);
  raw_client first{server_->port()};
  EXPECT_EQ(first.wait(first.open(echo, framed("x"))).status(), 0);
  raw_client second{server_->port()};
  EXPECT_FALSE(second.pump([] { return false; }, 1s));
  EXPECT_TRUE(second.connection_closed());
  EXPECT_EQ(server_->counters().connections_refused, 1U);
  EXPECT_EQ(first.wait(first.open(echo, framed("x"))).status(), 0);
}

/// Sends `bytes` on a connection of its own; true when the server closes it within two seconds.
bool closes_after(std::uint16_t port, const std::string& bytes) {
  const auto fd = testing::connect_to(port);
  const timeval limit{2, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  char buffer[4096];
  for (;;) {
    const auto got = ::recv(fd.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) {
      return got == 0 || errno == ECONNRESET;
    }
  }
}

TEST_F(grpc_server, bytes_that_are_not_http2_close_their_connection_alone) {
  start();
  raw_client witness{server_->port()};
  const auto id = witness.open(feed, framed(""));
  ASSERT_TRUE(witness.pump([&] { return log_.alive == 1; }));
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  const std::vector<std::string> bad{
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(100, '\xff'),
      preface + std::string("\0\0\1\0\0\0\0\0\0x", 10),                           // DATA on stream 0
      preface + settings + std::string("\0\0\4\1\4\0\0\0\1\xff\xff\xff\xff", 13), // HEADERS that are no HPACK
      preface + settings + std::string("\xff\xff\xff\4\0\0\0\0\0", 9),            // a frame larger than allowed
      preface + settings + std::string("\0\0\1\6\0\0\0\0\0x", 10),                // PING of one byte
      preface + settings + std::string("\0\0\4\10\0\0\0\0\0\0\0\0\0", 13),        // WINDOW_UPDATE by nothing
      preface + settings + std::string("\0\0\0\11\0\0\0\0\1", 9),                 // CONTINUATION from nowhere
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_TRUE(closes_after(server_->port(), bad[i])) << "case " << i;
  }
  push({"still here"}, true);
  EXPECT_EQ(witness.wait(id).messages(), std::vector<std::string>{"still here"});
  EXPECT_GT(server_->counters().protocol_errors, 0U);
}

TEST_F(grpc_server, a_connection_without_a_preface_is_closed_in_time) {
  server_options options;
  options.preface_max = 100ms;
  start(options);
  EXPECT_TRUE(closes_after(server_->port(), ""));
}

TEST_F(grpc_server, a_silent_connection_is_pinged_and_closed_when_nothing_answers) {
  server_options options;
  options.keepalive_interval = 100ms;
  options.keepalive_timeout = 100ms;
  options.preface_max = 10s;
  start(options);
  raw_client client{server_->port()};
  EXPECT_EQ(client.wait(client.open(echo, framed("x"))).status(), 0);
  client.pump([] { return false; }, 600ms);
  EXPECT_FALSE(client.connection_closed()) << "it answered the PINGs";
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_now == 0; })) << "and then it did not";
}

TEST_F(grpc_server, many_connections_come_and_go) {
  start();
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<raw_client>> clients;
    for (int i = 0; i < 40; ++i) {
      clients.push_back(std::make_unique<raw_client>(server_->port()));
      clients.back()->open(feed, framed(""));
      clients.back()->flush();
    }
    for (auto& client : clients) {
      EXPECT_EQ(client->wait(client->open(echo, framed("x"))).status(), 0);
    }
  }
  EXPECT_TRUE(eventually([&] { return server_->counters().calls_now == 0; }));
  EXPECT_EQ(log_.alive, 0);
}

// --- wake, post, drain, stop
// ------------------------------------------------------------------------------------------

TEST_F(grpc_server, wakes_from_many_threads_are_merged_and_none_is_lost) {
  start();
  std::atomic<int> posted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        server_->wake();
        server_->post([&] { posted.fetch_add(1); });
      }
    });
  }
  for (auto& t : threads) {
    t.join();
  }
  EXPECT_TRUE(eventually([&] { return posted == 4000; }));
  EXPECT_GT(woken_, 0);
  EXPECT_LE(server_->counters().wakes, 8000U);
}

TEST_F(grpc_server, a_drain_lets_open_calls_end_and_takes_no_new_ones) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(feed, framed(""));
  ASSERT_TRUE(client.pump([&] { return log_.alive == 1; }));
  std::atomic<int> result{-1};
  std::thread drainer{[&] { result = server_->drain(5s) ? 1 : 0; }};
  ASSERT_TRUE(client.pump([&] { return client.goaways() == 2; }));
  EXPECT_EQ(client.goaway_last_stream(), id);
  EXPECT_THROW(static_cast<void>(testing::connect_to(server_->port())), std::runtime_error);
  push({"last words"}, true);
  const auto& in = client.wait(id);
  EXPECT_EQ(in.messages(), std::vector<std::string>{"last words"});
  EXPECT_EQ(in.status(), 0);
  drainer.join();
  EXPECT_EQ(result, 1);
}

TEST_F(grpc_server, a_drain_that_runs_out_of_time_ends_calls_as_unavailable) {
  start();
  raw_client client{server_->port()};
  const auto id = client.open(feed, framed(""));
  ASSERT_TRUE(client.pump([&] { return log_.alive == 1; }));
  std::atomic<int> result{-1};
  std::thread drainer{[&] { result = server_->drain(100ms) ? 1 : 0; }};
  EXPECT_EQ(client.wait(id).status(), 14);
  drainer.join();
  EXPECT_EQ(result, 0);
  EXPECT_EQ(cancels_within(0ms), std::vector<cancel_reason>{cancel_reason::shutting_down});
}

TEST_F(grpc_server, an_idle_server_drains_at_once) {
  start();
  raw_client client{server_->port()};
  EXPECT_EQ(client.wait(client.open(echo, framed("x"))).status(), 0);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(server_->drain(10s));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 2s);
}

TEST_F(grpc_server, stop_cancels_what_is_open_and_can_be_repeated) {
  start();
  raw_client client{server_->port()};
  client.open(feed, framed(""));
  ASSERT_TRUE(client.pump([&] { return log_.alive == 1; }));
  server_->stop();
  server_->stop();
  EXPECT_EQ(cancels_within(0ms), std::vector<cancel_reason>{cancel_reason::shutting_down});
  EXPECT_EQ(log_.alive, 0);
  server_->wake();
  server_->post([] { FAIL(); });
}

TEST(grpc_server_start, an_address_that_cannot_be_bound_is_an_error_with_its_name) {
  for (const auto* bad : {"nonsense", "127.0.0.1:99999", "127.0.0.1:x", "192.0.2.1:80", "127.0.0.1:"}) {
    server_options options;
    options.listen = bad;
    server s{options};
    const auto started = s.start();
    ASSERT_FALSE(started) << bad;
    EXPECT_NE(started.error().find(bad), std::string::npos) << started.error();
  }
}

TEST(grpc_server_start, ipv6_loopback_works_where_there_is_one) {
  server_options options;
  options.listen = "[::1]:0";
  server s{options};
  if (const auto started = s.start(); !started) {
    GTEST_SKIP() << started.error();
  }
  EXPECT_NE(s.port(), 0);
}

} // namespace
} // namespace rankwise::io::grpc
