#include "app/bench/bench_connection.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

namespace rankwise::app {

namespace {

constexpr std::int32_t window_bytes = 1 << 24;

std::uint8_t* bytes_of(std::string_view s) {
  return reinterpret_cast<std::uint8_t*>(const_cast<char*>(s.data())); // nghttp2 does not write through it
}

nghttp2_nv header(std::string_view name, std::string_view value) {
  return {bytes_of(name), bytes_of(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

int connect_to(const std::string& target) {
  const auto colon = target.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  std::uint16_t port = 0;
  const auto* end = target.data() + target.size();
  if (colon == std::string::npos || std::from_chars(target.data() + colon + 1, end, port).ptr != end ||
      ::inet_pton(AF_INET, target.substr(0, colon).c_str(), &address.sin_addr) != 1)
    throw std::runtime_error(target + " is not an IPv4 address and a port");
  address.sin_port = htons(port);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0)
      ::close(fd);
    throw std::runtime_error("cannot connect to " + target + ": " + why);
  }
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  return fd;
}

} // namespace

struct bench_connection::callbacks {
  static bench_connection& of(void* user) { return *static_cast<bench_connection*>(user); }

  static call* find(void* user, std::int32_t id) {
    const auto found = of(user).calls_.find(id);
    return found == of(user).calls_.end() ? nullptr : found->second.get();
  }

  static ssize_t body(nghttp2_session*, std::int32_t, std::uint8_t* buffer, std::size_t room, std::uint32_t* flags,
                      nghttp2_data_source* source, void*) {
    auto& c = *static_cast<call*>(source->ptr);
    const auto part = std::min(room, c.body.size() - c.sent);
    std::memcpy(buffer, c.body.data() + c.sent, part);
    c.sent += part;
    if (c.sent == c.body.size())
      *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(part);
  }

  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* user) {
    const std::string_view key{reinterpret_cast<const char*>(name), name_size};
    const std::string_view text{reinterpret_cast<const char*>(value), value_size};
    if (auto* c = find(user, frame->hd.stream_id)) {
      if (key == "grpc-status")
        std::from_chars(text.data(), text.data() + text.size(), c->status);
      else if (key == "grpc-message")
        c->status_text = text;
    }
    return 0;
  }

  static int on_data(nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* data, std::size_t size,
                     void* user) {
    auto* c = find(user, id);
    if (c == nullptr)
      return 0;
    for (std::string_view rest{reinterpret_cast<const char*>(data), size}; !rest.empty();) {
      const auto state = c->reader.feed(rest);
      if (state == io::grpc::message_reader::state::need_more)
        break;
      if (state != io::grpc::message_reader::state::message)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
      of(user).told_.on_message(c->tag, c->reader.body());
      c->reader.next();
    }
    return 0;
  }

  static int on_close(nghttp2_session*, std::int32_t id, std::uint32_t, void* user) {
    auto& calls = of(user).calls_;
    if (const auto found = calls.find(id); found != calls.end()) {
      const auto ended = std::move(found->second);
      calls.erase(found);
      of(user).told_.on_end(ended->tag, ended->status, ended->status_text);
    }
    return 0;
  }
};

bench_connection::bench_connection(const std::string& target, const events& told)
    : authority_(target), told_(told), socket_(connect_to(target)) {
  nghttp2_session_callbacks* table = nullptr;
  if (nghttp2_session_callbacks_new(&table) != 0)
    throw std::bad_alloc{};
  nghttp2_session_callbacks_set_on_header_callback(table, callbacks::on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(table, callbacks::on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(table, callbacks::on_close);
  const int made = nghttp2_session_client_new(&session_, table, this);
  nghttp2_session_callbacks_del(table);
  if (made != 0)
    throw std::bad_alloc{};
  const std::array<nghttp2_settings_entry, 1> settings{{{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window_bytes}}};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, window_bytes);
}

bench_connection::~bench_connection() {
  nghttp2_session_del(session_);
}

void bench_connection::start(std::uint32_t tag, std::string path, std::string_view request) {
  const std::array<nghttp2_nv, 6> headers{header(":method", "POST"), header(":scheme", "http"),
                                          header(":path", path),     header(":authority", authority_),
                                          header("te", "trailers"),  header("content-type", "application/grpc")};
  auto c = std::make_unique<call>(tag);
  c->body.resize(io::grpc::message_prefix_bytes);
  io::grpc::write_message_prefix(c->body.data(), static_cast<std::uint32_t>(request.size()));
  c->body += request;
  nghttp2_data_provider provider{};
  provider.source.ptr = c.get();
  provider.read_callback = callbacks::body;
  const auto id = nghttp2_submit_request(session_, nullptr, headers.data(), headers.size(), &provider, nullptr);
  if (id < 0)
    throw std::runtime_error(std::string{"a call was not begun: "} + nghttp2_strerror(id));
  calls_.emplace(id, std::move(c));
}

void bench_connection::read() {
  static thread_local std::array<std::uint8_t, 256 << 10> chunk;
  for (int i = 0; i < 4; ++i) {
    const auto got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return;
    if (got <= 0)
      throw std::runtime_error("the server closed a connection");
    if (const auto taken = nghttp2_session_mem_recv(session_, chunk.data(), static_cast<std::size_t>(got)); taken < 0)
      throw std::runtime_error(std::string{"the server broke HTTP/2: "} + nghttp2_strerror(static_cast<int>(taken)));
    if (static_cast<std::size_t>(got) < chunk.size())
      return;
  }
}

void bench_connection::flush() {
  const std::uint8_t* data = nullptr;
  for (;;) {
    const auto size = nghttp2_session_mem_send(session_, &data);
    if (size < 0)
      throw std::runtime_error(std::string{"nghttp2: "} + nghttp2_strerror(static_cast<int>(size)));
    if (size == 0)
      break;
    out_.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
  }
  if (out_.empty())
    return;
  const auto sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    throw std::runtime_error("the server closed a connection");
  if (sent > 0)
    out_.erase(0, static_cast<std::size_t>(sent));
}

} // namespace rankwise::app
