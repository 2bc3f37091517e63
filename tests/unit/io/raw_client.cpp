#include "raw_client.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace rankwise::testing {

int reply::status() const {
  for (const auto* block : {&trailers, &headers}) {
    if (const auto found = block->find("grpc-status"); found != block->end()) {
      return std::stoi(found->second);
    }
  }
  return -1;
}

std::string reply::message() const {
  for (const auto* block : {&trailers, &headers}) {
    if (const auto found = block->find("grpc-message"); found != block->end()) {
      return found->second;
    }
  }
  return {};
}

std::vector<std::string> reply::messages() const {
  std::vector<std::string> out;
  std::size_t at = 0;
  while (data.size() - at >= 5) {
    std::size_t size = 0;
    for (std::size_t i = 1; i < 5; ++i) {
      size = size << 8 | static_cast<unsigned char>(data[at + i]);
    }
    if (data.size() - at - 5 < size) {
      break;
    }
    out.push_back(data.substr(at + 5, size));
    at += 5 + size;
  }
  return out;
}

struct raw_client::callbacks {
  static raw_client& of(void* user) { return *static_cast<raw_client*>(user); }

  static ssize_t read(nghttp2_session*, std::int32_t id, std::uint8_t* buffer, std::size_t room, std::uint32_t* flags,
                      nghttp2_data_source*, void* user) {
    auto& out = of(user).streams_[id].out;
    const auto part = std::min({room, out.piece_bytes, out.body.size() - out.sent});
    std::memcpy(buffer, out.body.data() + out.sent, part);
    out.sent += part;
    if (out.sent == out.body.size()) {
      if (!out.end) {
        return part > 0 ? static_cast<ssize_t>(part) : static_cast<ssize_t>(NGHTTP2_ERR_DEFERRED);
      }
      *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return static_cast<ssize_t>(part);
  }

  static int header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                    const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* user) {
    auto& in = of(user).streams_[frame->hd.stream_id].in;
    auto& block = frame->headers.cat == NGHTTP2_HCAT_RESPONSE ? in.headers : in.trailers;
    block[{reinterpret_cast<const char*>(name), name_size}] = {reinterpret_cast<const char*>(value), value_size};
    return 0;
  }

  static int frame(nghttp2_session*, const nghttp2_frame* f, void* user) {
    auto& self = of(user);
    if (f->hd.type == NGHTTP2_GOAWAY) {
      ++self.goaways_;
      self.goaway_last_ = f->goaway.last_stream_id;
    } else if (f->hd.type == NGHTTP2_PING && (f->hd.flags & NGHTTP2_FLAG_ACK) != 0) {
      ++self.pongs_;
    } else if ((f->hd.type == NGHTTP2_DATA || f->hd.type == NGHTTP2_HEADERS)) {
      auto& in = self.streams_[f->hd.stream_id].in;
      in.data_frames += f->hd.type == NGHTTP2_DATA ? 1 : 0;
      in.ended = in.ended || (f->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    } else if (f->hd.type == NGHTTP2_RST_STREAM) {
      self.streams_[f->hd.stream_id].in.reset_code = f->rst_stream.error_code;
    }
    return 0;
  }

  static int data(nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* bytes, std::size_t size,
                  void* user) {
    of(user).streams_[id].in.data.append(reinterpret_cast<const char*>(bytes), size);
    return 0;
  }

  static int close(nghttp2_session*, std::int32_t id, std::uint32_t code, void* user) {
    auto& in = of(user).streams_[id].in;
    in.closed = true;
    in.reset_code = code;
    return 0;
  }
};

io::grpc::unique_fd connect_to(std::uint16_t port) {
  io::grpc::unique_fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error(std::string{"connect: "} + std::strerror(errno));
  }
  return fd;
}

std::string framed(std::string_view message, char flag) {
  std::string out(5, '\0');
  out[0] = flag;
  for (std::size_t i = 0; i < 4; ++i) {
    out[4 - i] = static_cast<char>(message.size() >> (8 * i));
  }
  return out + std::string{message};
}

raw_client::raw_client(std::uint16_t port, client_settings settings) : socket_(connect_to(port)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  nghttp2_session_callbacks* table = nullptr;
  nghttp2_session_callbacks_new(&table);
  nghttp2_session_callbacks_set_on_header_callback(table, &callbacks::header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(table, &callbacks::frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(table, &callbacks::data);
  nghttp2_session_callbacks_set_on_stream_close_callback(table, &callbacks::close);
  nghttp2_option* option = nullptr;
  nghttp2_option_new(&option);
  nghttp2_option_set_no_auto_window_update(option, settings.auto_window_update ? 0 : 1);
  nghttp2_session_client_new2(&session_, table, this, option);
  nghttp2_option_del(option);
  nghttp2_session_callbacks_del(table);
  const nghttp2_settings_entry entry{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, settings.window_bytes};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &entry, 1);
}

raw_client::~raw_client() {
  nghttp2_session_del(session_);
}

std::int32_t raw_client::open(std::string_view path, std::string body, bool end, const headers& more,
                              std::size_t piece_bytes) {
  headers all{{":method", "POST"},    {":scheme", "http"}, {":path", std::string{path}},
              {":authority", "test"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
  all.insert(all.end(), more.begin(), more.end());
  return open_with(all, std::move(body), end, piece_bytes);
}

std::int32_t raw_client::open_with(const headers& all, std::string body, bool end, std::size_t piece_bytes) {
  std::vector<nghttp2_nv> block;
  for (const auto& [name, value] : all) {
    block.push_back({reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
                     reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
                     NGHTTP2_NV_FLAG_NONE});
  }
  nghttp2_data_provider provider{};
  provider.read_callback = &callbacks::read;
  const bool only_headers = body.empty() && end;
  const auto id = nghttp2_submit_request(session_, nullptr, block.data(), block.size(),
                                         only_headers ? nullptr : &provider, nullptr);
  if (id < 0) {
    throw std::runtime_error(nghttp2_strerror(id));
  }
  streams_[id].out = {std::move(body), 0, piece_bytes, end};
  return id;
}

void raw_client::send_more(std::int32_t stream, std::string body, bool end) {
  auto& out = streams_[stream].out;
  out.body += body;
  out.end = end;
  nghttp2_session_resume_data(session_, stream);
}

void raw_client::reset(std::int32_t stream, std::uint32_t code) {
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, code);
}

void raw_client::ping() {
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
}

void raw_client::window_update(std::int32_t stream, std::int32_t bytes) {
  nghttp2_submit_window_update(session_, NGHTTP2_FLAG_NONE, stream, bytes);
}

void raw_client::flush() {
  for (;;) {
    const std::uint8_t* bytes = nullptr;
    const auto size = nghttp2_session_mem_send(session_, &bytes);
    if (size <= 0) {
      break;
    }
    out_.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    if (out_.size() > (1 << 20)) {
      break;
    }
  }
  while (!out_.empty()) {
    const auto sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      closed_ = closed_ || (errno != EAGAIN && errno != EINTR);
      return;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

bool raw_client::pump(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  std::vector<std::uint8_t> chunk(65536);
  while (!done()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (closed_ || left.count() <= 0) {
      return done();
    }
    flush();
    pollfd poll_for{socket_.get(), POLLIN, 0};
    if (!out_.empty() || nghttp2_session_want_write(session_) != 0) {
      poll_for.events |= POLLOUT;
    }
    if (::poll(&poll_for, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 20))) <= 0) {
      continue;
    }
    const auto got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      closed_ = true;
    } else if (got > 0 && nghttp2_session_mem_recv(session_, chunk.data(), static_cast<std::size_t>(got)) < 0) {
      throw std::runtime_error("the server broke HTTP/2");
    }
  }
  return true;
}

const reply& raw_client::wait(std::int32_t stream, std::chrono::milliseconds limit) {
  auto& in = streams_[stream].in;
  pump([&] { return in.closed; }, limit);
  return in;
}

std::uint32_t raw_client::server_setting(nghttp2_settings_id id) const {
  return nghttp2_session_get_remote_settings(session_, id);
}

} // namespace rankwise::testing
