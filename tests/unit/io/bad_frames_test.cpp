// Breaches of HTTP/2, each from RFC 9113 (its section stands in the row), on raw sockets: the right error, for the
// stream or the connection alone, and the server serves the next one.

#include "frame_client.hpp"
#include "raw_client.hpp"
#include "small_server.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace rankwise::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t protocol_error = 1;
constexpr std::uint32_t flow_control_error = 3;
constexpr std::uint32_t stream_closed = 5;
constexpr std::uint32_t frame_size_error = 6;
constexpr std::uint32_t compression_error = 9;

using fields = std::vector<std::pair<std::string, std::string>>;

struct row {
  std::string name;
  std::string bytes; ///< Behind the preface and SETTINGS.
  std::uint32_t code;
};

std::string call_with(const fields& block, std::uint32_t stream = 1) {
  return frame(headers_frame, end_headers | end_stream, stream, literals(block));
}

fields but(std::string_view without, const fields& more = {}) {
  fields out;
  for (const auto& [name, value] :
       fields{{":method", "POST"}, {":scheme", "http"}, {":path", std::string{echo_path}}, {":authority", "test"}}) {
    if (name != without) {
      out.emplace_back(name, value);
    }
  }
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

const std::string open_1 = frame(headers_frame, end_headers, 1, request_block(hold_path));
const std::string closed_1 = frame(headers_frame, end_headers | end_stream, 1, request_block(hold_path));

std::vector<row> connection_rows() {
  return {
      {"6.1 DATA on stream 0", frame(data, 0, 0, "x"), protocol_error},
      {"6.1 DATA with more padding than bytes", open_1 + frame(data, padded, 1, "\x09x"), protocol_error},
      {"5.1 DATA on an idle stream", frame(data, 0, 1, "x"), protocol_error},
      {"6.2 HEADERS on stream 0", frame(headers_frame, end_headers, 0, request_block(echo_path)), protocol_error},
      {"5.1.1 HEADERS on an even stream", frame(headers_frame, end_headers, 2, request_block(echo_path)),
       protocol_error},
      {"6.2 HEADERS with more padding than bytes",
       frame(headers_frame, end_headers | padded, 1, "\xff" + request_block(echo_path)), protocol_error},
      {"6.3 PRIORITY of 4 bytes", frame(priority, 0, 1, "1234"), frame_size_error},
      {"6.4 RST_STREAM on stream 0", frame(rst_stream, 0, 0, number(8)), protocol_error},
      {"6.4 RST_STREAM on an idle stream", frame(rst_stream, 0, 1, number(8)), protocol_error},
      {"6.4 RST_STREAM of 3 bytes", open_1 + frame(rst_stream, 0, 1, "abc"), frame_size_error},
      {"6.5 SETTINGS on stream 1", frame(settings, 0, 1, ""), protocol_error},
      {"6.5 SETTINGS of 5 bytes", frame(settings, 0, 0, "abcde"), frame_size_error},
      {"6.5 SETTINGS ACK with a payload", frame(settings, end_stream, 0, setting(3, 1)), frame_size_error},
      {"6.5.2 ENABLE_PUSH = 2", frame(settings, 0, 0, setting(2, 2)), protocol_error},
      {"6.5.2 INITIAL_WINDOW_SIZE = 2^31", frame(settings, 0, 0, setting(4, 0x80000000U)), flow_control_error},
      {"6.5.2 MAX_FRAME_SIZE = 100", frame(settings, 0, 0, setting(5, 100)), protocol_error},
      {"6.6 PUSH_PROMISE from a client", open_1 + frame(push_promise, end_headers, 1, number(2) + literals(but(""))),
       protocol_error},
      {"6.7 PING of 7 bytes", frame(ping, 0, 0, "1234567"), frame_size_error},
      {"6.7 PING on stream 1", frame(ping, 0, 1, "12345678"), protocol_error},
      {"6.8 GOAWAY on stream 1", frame(goaway, 0, 1, number(0) + number(0)), protocol_error},
      {"6.8 GOAWAY of 4 bytes", frame(goaway, 0, 0, number(0)), frame_size_error},
      {"6.9 WINDOW_UPDATE by 0 of the connection", frame(window_update, 0, 0, number(0)), protocol_error},
      // A stream's error; section 5.4.2 lets us end the connection, as nghttp2 does.
      {"6.9 WINDOW_UPDATE by 0 of a stream", open_1 + frame(window_update, 0, 1, number(0)), protocol_error},
      {"6.9 WINDOW_UPDATE of 3 bytes", frame(window_update, 0, 0, "abc"), frame_size_error},
      {"6.9 WINDOW_UPDATE on an idle stream", frame(window_update, 0, 1, number(1)), protocol_error},
      {"6.9.1 the connection's window over 2^31-1", frame(window_update, 0, 0, number(0x7fffffff)), flow_control_error},
      {"6.10 CONTINUATION from nowhere", frame(continuation, end_headers, 1, ""), protocol_error},
      {"6.10 CONTINUATION of another stream",
       frame(headers_frame, 0, 1, request_block(echo_path)) + frame(continuation, end_headers, 3, ""), protocol_error},
      {"6.2 PING between HEADERS and CONTINUATION",
       frame(headers_frame, 0, 1, request_block(echo_path)) + frame(ping, 0, 0, "12345678"), protocol_error},
      {"4.2 HEADERS larger than the limit", frame(headers_frame, end_headers, 1, std::string((1 << 18) + 1, '\0')),
       frame_size_error},
      {"4.3 HPACK with an index that does not exist", frame(headers_frame, end_headers, 1, "\xff\xff\xff\x7f"),
       compression_error},
      {"4.3 HPACK with index 0", frame(headers_frame, end_headers, 1, "\x80"), compression_error},
      {"4.3 HPACK cut in a name", frame(headers_frame, end_headers, 1, std::string("\0\x20name", 6)),
       compression_error},
      {"4.3 HPACK with a table larger than announced", frame(headers_frame, end_headers, 1, "\x3f\xe1\xff\x03"),
       compression_error},
  };
}

std::vector<row> stream_rows() {
  const auto unary = [](const fields& more) {
    return frame(headers_frame, end_headers, 1, request_block(echo_path, more)) +
           frame(data, end_stream, 1, framed("abc"));
  };
  return {
      {"8.2.1 an uppercase name", call_with(but("", {{"Upper", "x"}})), protocol_error},
      {"8.2.1 a line break in a value", call_with(but("", {{"a", "x\r\ny"}})), protocol_error},
      {"8.2.2 connection", call_with(but("", {{"connection", "close"}})), protocol_error},
      {"8.2.2 transfer-encoding", call_with(but("", {{"transfer-encoding", "chunked"}})), protocol_error},
      {"8.2.2 te that is not trailers", call_with(but("", {{"te", "gzip"}})), protocol_error},
      {"8.3.1 no :method", call_with(but(":method")), protocol_error},
      {"8.3.1 no :scheme", call_with(but(":scheme")), protocol_error},
      {"8.3.1 no :path", call_with(but(":path")), protocol_error},
      {"8.3.1 an empty :path", call_with(but(":path", {{":path", ""}})), protocol_error},
      {"8.3 :path twice", call_with(but("", {{":path", "/x"}})), protocol_error},
      {"8.3 a pseudo header behind others", call_with(but(":path", {{"a", "b"}, {":path", "/x"}})), protocol_error},
      {"8.3 :status in a request", call_with(but("", {{":status", "200"}})), protocol_error},
      {"8.3 a pseudo header that nobody knows", call_with(but("", {{":what", "x"}})), protocol_error},
      {"8.1.1 more bytes than content-length", unary({{"content-length", "3"}}), protocol_error},
      {"8.1.1 fewer bytes than content-length", unary({{"content-length", "30"}}), protocol_error},
      {"8.1.1 content-length that is no number", unary({{"content-length", "many"}}), protocol_error},
      {"8.1 trailers without END_STREAM", open_1 + frame(headers_frame, end_headers, 1, literals({{"a", "b"}})),
       protocol_error},
      {"8.1 a pseudo header in trailers",
       open_1 + frame(headers_frame, end_headers | end_stream, 1, literals({{":path", "/x"}})), protocol_error},
      // Section 6.9.2 wants the connection ended; nghttp2 ends the streams that it hits.
      {"6.9.2 SETTINGS that take a stream's window over 2^31-1",
       open_1 + frame(window_update, 0, 1, number(0x7fff0000)) + frame(settings, 0, 0, setting(4, 0x7fffffff)),
       flow_control_error},
      {"6.9.1 a stream's window over 2^31-1", open_1 + frame(window_update, 0, 1, number(0x7fffffff)),
       flow_control_error},
  };
}

bool serves(std::uint16_t port) {
  raw_client client{port};
  return client.wait(client.open(echo_path, framed("x"))).status() == 0;
}

TEST(http2_breaches, of_the_connection_end_it_with_their_code_and_leave_others_alone) {
  const auto server = start_small_server();
  raw_client witness{server->port()};
  for (const auto& r : connection_rows()) {
    frame_client client{server->port()};
    client.send(r.bytes);
    const auto got = client.until([](const seen_frame& f) { return f.type == goaway; });
    ASSERT_TRUE(got) << r.name << (client.closed() ? ": closed without GOAWAY" : ": nothing happened");
    EXPECT_EQ(got->code(), r.code) << r.name;
    static_cast<void>(client.until([](const seen_frame&) { return false; }));
    EXPECT_TRUE(client.closed()) << r.name;
    EXPECT_TRUE(serves(server->port())) << r.name;
  }
  EXPECT_EQ(witness.wait(witness.open(echo_path, framed("x"))).status(), 0) << "open all the time";
  EXPECT_EQ(server->counters().calls_now, 0U);
}

TEST(http2_breaches, of_a_stream_reset_it_with_their_code_and_its_connection_goes_on) {
  const auto server = start_small_server();
  for (const auto& r : stream_rows()) {
    frame_client client{server->port()};
    client.send(r.bytes);
    const auto got = client.until([](const seen_frame& f) { return f.type == rst_stream || f.type == goaway; });
    ASSERT_TRUE(got) << r.name;
    EXPECT_EQ(got->type, rst_stream) << r.name;
    EXPECT_EQ(got->stream, 1U) << r.name;
    EXPECT_EQ(got->code(), r.code) << r.name;
    client.send(whole_call(7, echo_path, "still here"));
    const auto answer = client.until([](const seen_frame& f) { return f.type == data && f.stream == 7; });
    ASSERT_TRUE(answer) << r.name;
    EXPECT_EQ(answer->payload, framed("still here")) << r.name;
  }
  EXPECT_TRUE(eventually([&] { return server->counters().calls_now == 0; }));
}

TEST(http2_breaches, frames_on_a_stream_that_the_client_closed_are_answered_as_stream_closed) {
  const auto server = start_small_server();
  for (const auto& late : {frame(data, 0, 1, "x"), frame(headers_frame, end_headers, 1, request_block(hold_path))}) {
    frame_client client{server->port()};
    client.send(closed_1 + late);
    const auto got = client.until([](const seen_frame& f) { return f.type == rst_stream || f.type == goaway; });
    ASSERT_TRUE(got);
    EXPECT_EQ(got->code(), stream_closed);
    EXPECT_TRUE(serves(server->port()));
  }
}

TEST(http2_breaches, a_wrong_preface_closes_the_connection) {
  const auto server = start_small_server();
  for (const auto& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", 24),
                            std::string{preface} + frame(ping, 0, 0, "12345678"), std::string(64, '\0')}) {
    frame_client client{server->port(), false};
    client.send(bytes);
    static_cast<void>(client.until([](const seen_frame&) { return false; }, 3s));
    EXPECT_TRUE(client.closed()) << bytes;
  }
  EXPECT_TRUE(serves(server->port()));
}

TEST(http2_breaches, what_the_rfc_wants_ignored_is_ignored) {
  const auto server = start_small_server();
  frame_client client{server->port()};
  client.send(frame(0xbb, 0xff, 0, "an unknown type") + frame(0xbb, 0xff, 77, "the same on a stream") +
              frame(settings, 0, 0, setting(0xfefe, 1)) +                 // an unknown setting
              frame(ping, 0xfe, 0, "12345678") +                          // unknown flags
              frame(window_update, 0, 0x80000000U, number(0x80000001U)) + // reserved bits
              frame(priority, 0, 1, number(1) + "x") +
              frame(priority, 0, 0, "12345") + // RFC 9113 has priorities no more
              whole_call(1, echo_path, "served") + frame(rst_stream, 0, 1, number(8)) + // as it may cross the answer
              whole_call(3, echo_path, "served"));
  const auto answer = client.until([](const seen_frame& f) { return f.type == data && f.stream == 3; });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->payload, framed("served"));
  EXPECT_EQ(server->counters().protocol_errors, 0U);
}

// Section 5.1.1 wants the connection ended. nghttp2 takes such a stream for one that was closed.
TEST(http2_breaches, a_stream_below_one_that_was_opened_is_not_served) {
  const auto server = start_small_server();
  frame_client client{server->port()};
  client.send(whole_call(5, echo_path, "five") + whole_call(3, echo_path, "three") + whole_call(7, echo_path, "seven"));
  std::vector<std::uint32_t> answered;
  static_cast<void>(client.until([&](const seen_frame& f) {
    if (f.type == data) {
      answered.push_back(f.stream);
    }
    return f.type == goaway || f.stream == 7;
  }));
  EXPECT_EQ(std::count(answered.begin(), answered.end(), 3U), 0);
  EXPECT_TRUE(serves(server->port()));
}

TEST(http2_breaches, a_header_block_in_too_many_pieces_ends_the_connection) {
  const auto server = start_small_server();
  frame_client client{server->port()};
  std::string bytes = frame(headers_frame, 0, 1, request_block(echo_path));
  for (int i = 0; i < 100; ++i) {
    bytes += frame(continuation, 0, 1, "");
  }
  client.send(bytes);
  static_cast<void>(client.until([](const seen_frame&) { return false; }, 3s));
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(serves(server->port()));
}

TEST(http2_breaches, half_a_frame_and_a_hang_up_leave_nothing_behind) {
  const auto server = start_small_server();
  const auto bytes = std::string{preface} + frame(settings, 0, 0, "") + whole_call(1, echo_path, "cut somewhere");
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    frame_client client{server->port(), false};
    client.send(std::string_view{bytes}.substr(0, at));
  }
  EXPECT_TRUE(eventually([&] { return server->counters().connections_now == 0; }));
  EXPECT_EQ(server->counters().calls_now, 0U);
  EXPECT_TRUE(serves(server->port()));
}

} // namespace
} // namespace rankwise::testing
