#include "io/grpc/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

/// Whatever a client sends, in whatever pieces: the connection stays within its memory, and when it is gone no call, no
/// deadline and no byte of a request is left.
///
/// The first byte of the input: bit 0 = the preface and SETTINGS stand before the rest, bit 1 = the client never reads;
/// the second: the size of the pieces, 0 = one piece.
namespace rankwise::io::grpc {
namespace {

int calls_alive = 0;

class fuzzed_call final : public call_handler {
 public:
  explicit fuzzed_call(call& c) : call_(c) { ++calls_alive; }
  ~fuzzed_call() override { --calls_alive; }
  pull_result pull(std::string& out, status&) override {
    if (left_ == 0) {
      return closed_ ? pull_result::finished : pull_result::nothing_now;
    }
    --left_;
    out.append(1000, 'x');
    return pull_result::message;
  }
  void on_message(std::string_view message) override {
    left_ += message.size() % 8;
    call_.resume();
  }
  void on_half_close() override {
    closed_ = true;
    call_.resume();
  }

 private:
  call& call_;
  std::size_t left_ = 20;
  bool closed_ = false;
};

using started = tl::expected<std::unique_ptr<call_handler>, status>;

void add_methods(io_context& context) {
  context.methods["/e"] = unary_method{
      [](call&, std::string_view request) -> tl::expected<std::string, status> { return std::string{request}; }};
  context.methods["/s"] = streaming_method{[](call& c, std::string_view request) -> started {
    if (request == "no") {
      return tl::unexpected(status{status_code::aborted, "no"});
    }
    return std::make_unique<fuzzed_call>(c);
  }};
  context.methods["/b"] = bidirectional_method{[](call& c) -> started { return std::make_unique<fuzzed_call>(c); }};
}

/// One round of the server's loop for this connection; false = it is over.
bool run_round(io_context& context, connection& c) {
  context.now += std::chrono::milliseconds{100};
  if (!c.on_readable() || !c.on_tick()) {
    return false;
  }
  while (!context.deadlines.empty() && context.deadlines.begin()->first <= context.now) {
    auto* s = context.calls.find(context.deadlines.begin()->second);
    if (s == nullptr) {
      std::abort();
    }
    s->owner().expire(*s);
  }
  for (int i = 0; i < 20 && !context.dirty.empty(); ++i) {
    context.dirty.clear();
    c.unmark_dirty();
    if (!c.flush()) {
      return false;
    }
  }
  return true;
}

void drain_peer(int peer) {
  std::array<char, 65536> answer;
  while (::recv(peer, answer.data(), answer.size(), MSG_DONTWAIT) > 0) {
  }
}

void run(std::string_view input) {
  static constexpr std::string_view greeting{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33};
  const auto flags = static_cast<unsigned char>(input[0]);
  const auto piece = static_cast<unsigned char>(input[1]);
  const auto bytes = std::string{(flags & 1) != 0 ? greeting : std::string_view{}} + std::string{input.substr(2)};
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    std::abort();
  }
  const unique_fd peer{ends[1]};
  server_options options;
  options.message_bytes_max = 4096;
  options.streams_per_connection_max = 50;
  options.header_bytes_max = 2000;
  options.floods.resets = {50, 10};
  options.floods.empty_data = {50, 10};
  io_context context{options};
  add_methods(context);
  context.now = steady_time{} + std::chrono::hours{1};
  context.dirty.reserve(1);
  {
    connection c{context, unique_fd{ends[0]}, "fuzz"};
    bool alive = true;
    std::string_view rest = bytes;
    while (alive && !rest.empty()) {
      const auto size = piece == 0 ? rest.size() : std::min<std::size_t>(rest.size(), piece);
      const auto sent = ::send(peer.get(), rest.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        rest.remove_prefix(static_cast<std::size_t>(sent));
      }
      alive = run_round(context, c);
      if ((flags & 2) == 0) {
        drain_peer(peer.get());
        alive = alive && c.on_writable() && run_round(context, c);
      }
    }
    if (c.open_calls() != context.counters.calls_now.get()) {
      std::abort();
    }
    if ((flags & 4) != 0) {
      c.begin_drain();
      c.finish_goaway();
      c.end_all({status_code::unavailable, "over"});
      static_cast<void>(run_round(context, c));
    }
  }
  if (calls_alive != 0 || context.counters.calls_now.get() != 0 || context.unfinished_request_bytes != 0 ||
      !context.deadlines.empty() || !context.dirty.empty()) {
    std::abort();
  }
}

} // namespace
} // namespace rankwise::io::grpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 2 && size <= 65536) {
    rankwise::io::grpc::run({reinterpret_cast<const char*>(data), size});
  }
  return 0;
}
