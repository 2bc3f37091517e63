#include "io/grpc/connection.hpp"

#include "io/grpc/protocol.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace rankwise::io::grpc {

namespace {

constexpr std::size_t read_chunk_bytes = 64 << 10;
constexpr int reads_per_round_max = 16;
constexpr int writes_per_round_max = 4;
constexpr std::size_t out_capacity_kept_bytes = 1 << 20;
// Opaque data of our PINGs: the one whose answer ends the first phase of a drain, and the keepalive's.
constexpr std::array<std::uint8_t, 8> drain_ping{'r', 'w', 'd', 'r', 'a', 'i', 'n', 0};
constexpr std::array<std::uint8_t, 8> keepalive_ping{'r', 'w', 'a', 'l', 'i', 'v', 'e', 0};

// nghttp2's structs want non-const pointers that it never writes through.
std::uint8_t* bytes_of(std::string_view s) noexcept {
  return reinterpret_cast<std::uint8_t*>(const_cast<char*>(s.data()));
}

nghttp2_nv static_header(std::string_view name, std::string_view value) noexcept {
  return {bytes_of(name), bytes_of(value), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
}

nghttp2_nv header(std::string_view name, std::string_view value) noexcept {
  return {bytes_of(name), bytes_of(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NO_COPY_NAME};
}

std::string_view code_text(status_code code) noexcept {
  static constexpr std::array<std::string_view, 17> texts{"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                                          "9", "10", "11", "12", "13", "14", "15", "16"};
  const auto index = static_cast<std::size_t>(code);
  return index < texts.size() ? texts[index] : texts[2];
}

// The error codes that gRPC clients turn back into the nearest status ("Errors" of the gRPC over HTTP2 page).
std::uint32_t reset_code(status_code code) noexcept {
  switch (code) {
  case status_code::ok:
    return NGHTTP2_NO_ERROR;
  case status_code::cancelled:
  case status_code::deadline_exceeded:
    return NGHTTP2_CANCEL;
  case status_code::resource_exhausted:
    return NGHTTP2_ENHANCE_YOUR_CALM;
  case status_code::permission_denied:
    return NGHTTP2_INADEQUATE_SECURITY;
  default:
    return NGHTTP2_INTERNAL_ERROR;
  }
}

} // namespace

// --- call ids
// ---------------------------------------------------------------------------------------------------------

call_id call_table::insert(stream* s) {
  if (free_.empty()) {
    if (slots_.size() > slot_mask) {
      throw std::length_error("too many calls");
    }
    slots_.emplace_back();
    free_.reserve(slots_.capacity()); // so that erase() cannot throw
    free_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
  }
  const auto index = free_.back();
  free_.pop_back();
  slots_[index] = {++count_ << slot_bits | index, s, nullptr};
  return slots_[index].id;
}

void call_table::erase(call_id id) noexcept {
  const auto index = id & slot_mask;
  if (index < slots_.size() && slots_[index].id == id) {
    slots_[index] = {};
    free_.push_back(static_cast<std::uint32_t>(index));
  }
}

void call_table::set_handler(call_id id, call_handler* handler) noexcept {
  const auto index = id & slot_mask;
  if (index < slots_.size() && slots_[index].id == id) {
    slots_[index].handler = handler;
  }
}

stream* call_table::find(call_id id) const noexcept {
  const auto index = id & slot_mask;
  return id != 0 && index < slots_.size() && slots_[index].id == id ? slots_[index].open : nullptr;
}

// --- the call as handlers see it
// --------------------------------------------------------------------------------------

std::string_view to_string(cancel_reason reason) noexcept {
  switch (reason) {
  case cancel_reason::client_reset:
    return "client_reset";
  case cancel_reason::connection_closed:
    return "connection_closed";
  case cancel_reason::deadline:
    return "deadline";
  case cancel_reason::slow_client:
    return "slow_client";
  case cancel_reason::shutting_down:
    return "shutting_down";
  case cancel_reason::protocol_error:
    return "protocol_error";
  case cancel_reason::internal_error:
    return "internal_error";
  }
  return "unknown";
}

std::string_view stream::peer() const noexcept {
  return owner_.peer();
}

std::optional<std::string_view> stream::metadata(std::string_view key) const noexcept {
  for (const auto& [name, value] : metadata_) {
    if (name == key) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::chrono::nanoseconds> stream::time_left() const noexcept {
  if (!has_deadline_) {
    return std::nullopt;
  }
  return std::max(deadline_->first - std::chrono::steady_clock::now(), std::chrono::nanoseconds{0});
}

void stream::resume() noexcept {
  if (std::exchange(idle_, false)) {
    last_progress_ = owner_.context().now; // from here on the client can be slow
  }
  if (!dirty_ && !end_submitted_) {
    owner_.mark_dirty(*this);
  }
}

void stream::set_handler(std::unique_ptr<call_handler> handler) noexcept {
  handler_ = std::move(handler);
  owner_.context().calls.set_handler(id_, handler_.get());
}

void stream::set_ending() noexcept {
  ending_ = true;
  owner_.context().calls.set_handler(id_, nullptr);
}

void stream::end_now(status why) {
  owner_.end_stream_now(*this, std::move(why));
}

// --- nghttp2's callbacks
// ----------------------------------------------------------------------------------------------

// Nothing may be thrown through nghttp2's C frames: out of memory ends the connection.
struct connection::callbacks {
  static connection& of(void* user) noexcept { return *static_cast<connection*>(user); }

  static stream* find(nghttp2_session* session, std::int32_t http2_id) noexcept {
    return static_cast<stream*>(nghttp2_session_get_stream_user_data(session, http2_id));
  }

  template <class F>
  static int guarded(F&& f) noexcept {
    try {
      f();
      return 0;
    } catch (...) {
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
  }

  static int begin_frame(nghttp2_session*, const nghttp2_frame_hd* frame, void* user) {
    return guarded([&] { of(user).count_frame(*frame); });
  }

  static int begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
      return 0;
    }
    return guarded([&] {
      auto& self = of(user);
      const auto http2_id = frame->hd.stream_id;
      auto opened = std::make_unique<stream>(self, http2_id, self.context_.options.message_bytes_max);
      auto* s = opened.get();
      self.streams_.emplace(http2_id, std::move(opened));
      s->id_ = self.context_.calls.insert(s);
      s->opened_ = s->last_progress_ = self.context_.now;
      self.context_.counters.calls_now.add();
      ++self.unfinished_requests_;
      self.guard_.stream_opened();
      nghttp2_session_set_stream_user_data(session, http2_id, s);
    });
  }

  static int on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                       std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t,
                       void* user) {
    auto* s = find(session, frame->hd.stream_id);
    if (s == nullptr || s->headers_done_) {
      return 0; // trailers of the client carry nothing that we use
    }
    return guarded([&] {
      auto& self = of(user);
      const std::string_view key{reinterpret_cast<const char*>(name), name_size};
      const std::string_view text{reinterpret_cast<const char*>(value), value_size};
      s->header_bytes_ += name_size + value_size;
      if (s->header_bytes_ > self.context_.options.header_bytes_max) {
        return; // answered when the block is complete
      }
      if (key == ":path") {
        s->path_ = text;
      } else if (key == ":method") {
        s->method_ = text;
      } else if (key == "content-type") {
        s->content_type_ = text;
      } else if (key == "grpc-timeout") {
        s->timeout_ = text;
      } else if (key == "grpc-encoding") {
        s->encoding_ = text == "identity" ? "" : text;
      } else if (!key.starts_with(':') && !key.starts_with("grpc-") && key != "te") {
        s->metadata_.emplace_back(key, text);
      }
    });
  }

  static int on_frame(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    auto& self = of(user);
    return guarded([&] {
      switch (frame->hd.type) {
      case NGHTTP2_SETTINGS:
        self.settings_seen_ = true;
        return;
      case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) {
          self.ping_open_ = false;
          if (std::memcmp(frame->ping.opaque_data, drain_ping.data(), drain_ping.size()) == 0) {
            self.finish_goaway();
          }
        }
        return;
      case NGHTTP2_RST_STREAM:
        self.context_.counters.resets_received.add();
        return;
      case NGHTTP2_HEADERS:
      case NGHTTP2_DATA: {
        if (frame->hd.type == NGHTTP2_DATA && frame->hd.length > 0 && frame->data.padlen == frame->hd.length) {
          self.took(flood_kind::empty_data); // nothing but padding
        }
        auto* s = find(session, frame->hd.stream_id);
        if (s == nullptr) {
          return;
        }
        if (frame->hd.type == NGHTTP2_HEADERS && !s->headers_done_) {
          s->headers_done_ = true;
          self.on_headers_complete(*s);
        }
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
          self.on_end_stream(*s);
        }
        return;
      }
      default:
        return;
      }
    });
  }

  static int on_data(nghttp2_session* session, std::uint8_t, std::int32_t http2_id, const std::uint8_t* data,
                     std::size_t size, void* user) {
    auto* s = find(session, http2_id);
    if (s == nullptr) {
      return 0;
    }
    return guarded([&] { of(user).on_request_bytes(*s, {reinterpret_cast<const char*>(data), size}); });
  }

  static int on_invalid_frame(nghttp2_session*, const nghttp2_frame*, int, void* user) {
    return guarded([&] {
      of(user).context_.counters.protocol_errors.add();
      of(user).took(flood_kind::resets);
    });
  }

  static int on_close(nghttp2_session*, std::int32_t http2_id, std::uint32_t error, void* user) {
    of(user).close_stream(http2_id, error);
    return 0;
  }

  // Of a flood the client gets one GOAWAY, the one with the name: clients report the last that they got.
  static int before_frame_sent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    const bool nameless = frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.opaque_data_len == 0;
    return nameless && of(user).flooded_ ? NGHTTP2_ERR_CANCEL : 0;
  }

  // An answer before the whole request: the client is told to stop sending, as RFC 9113 section 8.1 wants it.
  static int on_frame_sent(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) {
      of(user).guard_.sent_to_client();
    }
    if (frame->hd.type == NGHTTP2_GOAWAY && of(user).flooded_) {
      of(user).flood_told_ = true;
    }
    if (frame->hd.type != NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
      return 0;
    }
    auto* s = find(session, frame->hd.stream_id);
    if (s != nullptr && !s->remote_closed_) {
      of(user).submit_reset(*s, NGHTTP2_NO_ERROR);
    }
    return 0;
  }

  static ssize_t send(nghttp2_session*, const std::uint8_t* data, std::size_t size, int, void* user) {
    auto& self = of(user);
    if (self.out_.size() >= self.context_.options.write_buffer_bytes_max) {
      return NGHTTP2_ERR_WOULDBLOCK;
    }
    try {
      self.out_.append(reinterpret_cast<const char*>(data), size);
    } catch (...) {
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return static_cast<ssize_t>(size);
  }

  static ssize_t read_data(nghttp2_session*, std::int32_t, std::uint8_t* buffer, std::size_t room, std::uint32_t* flags,
                           nghttp2_data_source* source, void* user) {
    try {
      return of(user).fill_data(*static_cast<stream*>(source->ptr), reinterpret_cast<char*>(buffer), room, *flags);
    } catch (...) {
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; // RST_STREAM for this stream alone
    }
  }

  static const nghttp2_session_callbacks* table() {
    static nghttp2_session_callbacks* const made = [] {
      nghttp2_session_callbacks* t = nullptr;
      if (nghttp2_session_callbacks_new(&t) != 0) {
        throw std::bad_alloc{};
      }
      nghttp2_session_callbacks_set_on_begin_frame_callback(t, &begin_frame);
      nghttp2_session_callbacks_set_on_begin_headers_callback(t, &begin_headers);
      nghttp2_session_callbacks_set_on_header_callback(t, &on_header);
      nghttp2_session_callbacks_set_on_frame_recv_callback(t, &on_frame);
      nghttp2_session_callbacks_set_on_data_chunk_recv_callback(t, &on_data);
      nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(t, &on_invalid_frame);
      nghttp2_session_callbacks_set_on_stream_close_callback(t, &on_close);
      nghttp2_session_callbacks_set_before_frame_send_callback(t, &before_frame_sent);
      nghttp2_session_callbacks_set_on_frame_send_callback(t, &on_frame_sent);
      nghttp2_session_callbacks_set_send_callback(t, &send);
      return t;
    }();
    return made;
  }
};

// --- life of a connection
// ---------------------------------------------------------------------------------------------

connection::connection(io_context& context, unique_fd socket, std::string peer)
    : context_(context), transport_(std::move(socket), context.tls ? &*context.tls : nullptr),
      guard_(context.options.floods, context.now), peer_(std::move(peer)), opened_(context.now),
      last_read_(context.now), last_write_(context.now), handshaking_(transport_.encrypted()) {
  nghttp2_option* option = nullptr;
  if (nghttp2_option_new(&option) != 0) {
    throw std::bad_alloc{};
  }
  const auto& limits = context_.options;
  nghttp2_option_set_no_closed_streams(option, 1);
  // flood_guard counts resets too; nghttp2's own limit would end the connection as INTERNAL_ERROR.
  constexpr std::uint64_t no_limit = std::uint64_t{1} << 40;
  nghttp2_option_set_stream_reset_rate_limit(option, no_limit, no_limit);
  const int made = nghttp2_session_server_new2(&session_, callbacks::table(), this, option);
  nghttp2_option_del(option);
  if (made != 0) {
    throw std::bad_alloc{};
  }
  // Without RFC 7540 priorities nghttp2 keeps no dependency tree.
  const std::array<nghttp2_settings_entry, 5> settings{{
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams_per_connection_max},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window_bytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, 1U << 18},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<std::uint32_t>(limits.header_bytes_max)},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  }};
  if (nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size()) != 0 ||
      nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                            static_cast<std::int32_t>(limits.connection_window_bytes)) != 0) {
    nghttp2_session_del(session_);
    throw std::runtime_error("HTTP/2 settings were not accepted");
  }
  mark_dirty();
}

connection::~connection() {
  for (auto& [http2_id, s] : streams_) {
    cancel(*s, close_reason_);
    release_held_bytes(*s);
    if (s->has_deadline_) {
      context_.deadlines.erase(s->deadline_);
    }
    context_.calls.erase(s->id_);
    context_.counters.calls_now.sub();
  }
  if (dirty_) {
    std::erase(context_.dirty, this);
  }
  // The session is deleted before the streams that its user data points to.
  nghttp2_session_del(session_);
}

void connection::mark_dirty() noexcept {
  if (!dirty_) {
    dirty_ = true;
    context_.dirty.push_back(this); // capacity for all connections is reserved when one is accepted
  }
}

void connection::mark_dirty(stream& s) noexcept {
  s.dirty_ = true;
  dirty_streams_.push_back(&s); // capacity for all streams is reserved when one is opened
  mark_dirty();
}

bool connection::feed(const std::uint8_t* data, std::size_t size) {
  const auto taken = nghttp2_session_mem_recv(session_, data, size);
  if (taken < 0) {
    context_.counters.protocol_errors.add();
    close_reason_ = cancel_reason::protocol_error;
    return false;
  }
  if (blocked_ && nghttp2_session_get_outbound_queue_size(session_) > context_.options.floods.unread_frames_max) {
    end_for_flood(flood_kind::unread);
  }
  return true;
}

/// False: it failed, or the client does not speak HTTP/2.
bool connection::step_handshake() {
  if (context_.handshake_steps_left == 0) {
    return true; // the socket stays ready, so the next round goes on here
  }
  --context_.handshake_steps_left;
  mark_dirty(); // so that what the socket is watched for is looked at again
  switch (transport_.handshake()) {
  case handshake_state::wants_readable:
    blocked_ = false;
    return true;
  case handshake_state::wants_writable:
    blocked_ = true;
    return true;
  case handshake_state::done:
    blocked_ = false;
    handshaking_ = false;
    opened_ = last_read_ = last_write_ = context_.now;
    context_.counters.tls_handshakes.add();
    return true;
  case handshake_state::failed:
    break;
  }
  context_.counters.count(transport_.why_failed());
  return false;
}

bool connection::on_readable() {
  static thread_local std::array<std::uint8_t, read_chunk_bytes> chunk;
  if (handshaking_) {
    return step_handshake();
  }
  if (flooded_) {
    return false; // and it does not even take the GOAWAY
  }
  for (int i = 0; i < reads_per_round_max; ++i) {
    const auto got = transport_.receive(chunk.data(), chunk.size());
    if (got.state != transfer_state::moved) {
      return got.state == transfer_state::blocked;
    }
    last_read_ = context_.now;
    context_.counters.bytes_read.add(got.bytes);
    mark_dirty();
    if (!feed(chunk.data(), got.bytes)) {
      return false;
    }
    // A TLS read is one record at most, so a short one does not tell that the socket is empty.
    if (got.bytes < chunk.size() && !transport_.encrypted()) {
      break;
    }
  }
  return true;
}

bool connection::on_writable() {
  if (handshaking_) {
    return step_handshake();
  }
  blocked_ = false;
  mark_dirty();
  return true;
}

// False: the socket is broken. Otherwise `out_` is empty or `blocked_` is set.
bool connection::write_out() {
  while (out_offset_ < out_.size()) {
    const auto sent = transport_.send(std::string_view{out_}.substr(out_offset_));
    if (sent.state == transfer_state::ended) {
      return false;
    }
    if (sent.state == transfer_state::blocked) {
      blocked_ = true;
      return true;
    }
    out_offset_ += sent.bytes;
    last_write_ = context_.now;
    context_.counters.bytes_written.add(sent.bytes);
    context_.counters.writes.add();
  }
  out_.clear();
  out_offset_ = 0;
  if (out_.capacity() > out_capacity_kept_bytes) {
    std::string{}.swap(out_);
  }
  return true;
}

bool connection::flush() {
  if (blocked_ || handshaking_) {
    return true; // streams stay in the list, and what they have to say grows meanwhile
  }
  if (!out_.empty()) {
    if (!write_out()) {
      return false;
    }
    if (blocked_) {
      return true;
    }
  }
  taken_streams_.swap(dirty_streams_);
  for (std::size_t i = 0; i < taken_streams_.size(); ++i) {
    if (auto* s = taken_streams_[i]; s != nullptr) {
      s->dirty_ = false;
      advance(*s);
    }
  }
  taken_streams_.clear();
  for (int i = 0; i < writes_per_round_max; ++i) {
    if (out_.empty()) {
      last_write_ = context_.now; // a stall is counted from the moment that something waits
    }
    if (nghttp2_session_send(session_) != 0) {
      return false;
    }
    const bool full = out_.size() >= context_.options.write_buffer_bytes_max;
    if (out_.empty()) {
      break;
    }
    if (!write_out()) {
      return false;
    }
    if (blocked_ || !full) {
      break;
    }
    if (i + 1 == writes_per_round_max) {
      mark_dirty(); // the rest in the next round, after the other connections
    }
  }
  return blocked_ ||
         (!flood_told_ && (nghttp2_session_want_read(session_) != 0 || nghttp2_session_want_write(session_) != 0));
}

// --- floods
// ----------------------------------------------------------------------------------------------------------

void connection::count_frame(const nghttp2_frame_hd& frame) {
  switch (frame.type) {
  case NGHTTP2_DATA:
    if (frame.length == 0 && (frame.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
      took(flood_kind::empty_data);
    }
    return;
  case NGHTTP2_HEADERS:
  case NGHTTP2_CONTINUATION: // nghttp2 takes a few of them for one block
    return;
  case NGHTTP2_PRIORITY:
    took(flood_kind::priorities);
    return;
  case NGHTTP2_RST_STREAM:
    took(flood_kind::resets);
    return;
  case NGHTTP2_WINDOW_UPDATE:
    took(flood_kind::window_updates);
    return;
  case NGHTTP2_PING:
    if ((frame.flags & NGHTTP2_FLAG_ACK) == 0) {
      if (!guard_.took_ping(context_.now)) {
        end_for_flood(flood_kind::pings);
      }
      return;
    }
    break;
  default:
    break;
  }
  took(flood_kind::control);
}

void connection::took(flood_kind kind) {
  if (!guard_.took_frame(kind, context_.now)) {
    end_for_flood(kind);
  }
}

void connection::end_for_flood(flood_kind kind) {
  if (std::exchange(flooded_, true)) {
    return;
  }
  context_.counters.floods[static_cast<std::size_t>(kind)].add();
  close_reason_ = cancel_reason::protocol_error;
  const auto name = to_string(kind);
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_ENHANCE_YOUR_CALM, bytes_of(name), name.size());
  // This makes nghttp2 ignore what still comes. Its own GOAWAY is held back by before_frame_sent().
  nghttp2_session_terminate_session(session_, NGHTTP2_ENHANCE_YOUR_CALM);
  mark_dirty();
}

// --- requests
// ---------------------------------------------------------------------------------------------------------

void connection::on_headers_complete(stream& s) {
  const auto& limits = context_.options;
  if (dirty_streams_.capacity() < streams_.size() || taken_streams_.capacity() < streams_.size()) {
    dirty_streams_.reserve(2 * streams_.size());
    taken_streams_.reserve(2 * streams_.size());
  }
  if (s.header_bytes_ > limits.header_bytes_max) {
    refuse(s, {status_code::resource_exhausted, "request headers: " + std::to_string(s.header_bytes_) +
                                                    " bytes, the limit is " + std::to_string(limits.header_bytes_max)});
    return;
  }
  if (s.method_ != "POST") {
    respond_plain(s, "405");
    return;
  }
  if (!is_grpc_content_type(s.content_type_)) {
    respond_plain(s, "415");
    return;
  }
  const auto method = context_.methods.find(std::string_view{s.path_});
  if (method == context_.methods.end()) {
    refuse(s, {status_code::unimplemented, "unknown method " + s.path_});
    return;
  }
  if (!s.timeout_.empty()) {
    const auto timeout = parse_timeout(s.timeout_);
    if (!timeout) {
      refuse(s, {status_code::invalid_argument, "grpc-timeout: " + s.timeout_ + " is not 1 to 8 digits and a unit"});
      return;
    }
    s.deadline_ = context_.deadlines.emplace(context_.now + *timeout, s.id_);
    s.has_deadline_ = true;
  }
  if (auto* start = std::get_if<bidirectional_method>(&method->second); start != nullptr) {
    s.bidirectional_ = true;
    context_.counters.calls_started.add();
    try {
      take_handler(s, (*start)(s));
    } catch (const std::exception& e) {
      end_for_exception(s, e);
    }
    s.resume();
  }
}

void connection::on_request_bytes(stream& s, std::string_view bytes) {
  s.last_progress_ = context_.now;
  while (!bytes.empty() && !s.ending_ && !s.end_submitted_) {
    if (!s.bidirectional_ && s.held_bytes_ >= message_prefix_bytes && !s.reader_.inside_message()) {
      refuse(s, {status_code::unimplemented, s.path_ + " takes one request message, more were sent"});
      return;
    }
    const auto before = bytes.size();
    const auto state = s.reader_.feed(bytes);
    const auto taken = before - bytes.size();
    s.held_bytes_ += taken;
    context_.unfinished_request_bytes += taken;
    switch (state) {
    case message_reader::state::need_more:
      break;
    case message_reader::state::message:
      context_.counters.messages_read.add();
      if (s.bidirectional_) {
        try {
          s.handler_->on_message(s.reader_.body());
        } catch (const std::exception& e) {
          end_for_exception(s, e);
          end_stream_now(s, s.end_);
        }
        s.reader_.next();
        release_held_bytes(s);
      }
      break;
    case message_reader::state::compressed:
      refuse(s, s.encoding_.empty()
                    ? status{status_code::internal, "a compressed message, and grpc-encoding names no compression"}
                    : status{status_code::unimplemented,
                             "compressed request messages are not supported: grpc-encoding is " + s.encoding_});
      return;
    case message_reader::state::bad_flag:
      refuse(s, {status_code::internal, "message prefix: the flag byte is neither 0 nor 1"});
      return;
    case message_reader::state::too_large:
      refuse(s, {status_code::resource_exhausted, "request message: " + std::to_string(s.reader_.announced_bytes()) +
                                                      " bytes, the limit is " +
                                                      std::to_string(context_.options.message_bytes_max)});
      return;
    }
    if (context_.unfinished_request_bytes > context_.options.unfinished_request_bytes_max) {
      refuse(s, {status_code::resource_exhausted, "the server holds too many bytes of unfinished requests"});
      return;
    }
  }
}

void connection::on_end_stream(stream& s) {
  if (std::exchange(s.remote_closed_, true)) {
    return;
  }
  --unfinished_requests_;
  if (s.ending_ || s.end_submitted_) {
    return;
  }
  if (s.reader_.inside_message()) {
    refuse(s, {status_code::internal, "the request ended inside a message"});
    return;
  }
  if (s.bidirectional_) {
    try {
      s.handler_->on_half_close();
    } catch (const std::exception& e) {
      end_for_exception(s, e);
      end_stream_now(s, s.end_);
    }
    return;
  }
  if (s.held_bytes_ < message_prefix_bytes) {
    refuse(s, {status_code::unimplemented, s.path_ + " takes one request message, none was sent"});
    return;
  }
  dispatch(s, s.reader_.body());
  s.reader_.next();
  release_held_bytes(s);
}

void connection::dispatch(stream& s, std::string_view body) {
  context_.counters.calls_started.add();
  const auto& method = context_.methods.find(std::string_view{s.path_})->second;
  try {
    if (const auto* unary = std::get_if<unary_method>(&method); unary != nullptr) {
      auto answer = (*unary)(s, body);
      if (s.end_submitted_) {
        return;
      }
      if (answer) {
        s.unsent_.resize(message_prefix_bytes);
        write_message_prefix(s.unsent_.data(), static_cast<std::uint32_t>(answer->size()));
        s.unsent_ += *answer;
        context_.counters.messages_written.add();
      } else {
        s.end_ = std::move(answer.error());
      }
      s.set_ending();
    } else {
      auto made = std::get<streaming_method>(method)(s, body);
      if (s.end_submitted_) {
        return;
      }
      take_handler(s, std::move(made));
    }
  } catch (const std::exception& e) {
    end_for_exception(s, e);
  }
  s.resume();
}

void connection::take_handler(stream& s, tl::expected<std::unique_ptr<call_handler>, status> made) {
  if (made) {
    s.set_handler(std::move(*made));
  } else {
    s.end_ = std::move(made.error());
    s.set_ending();
  }
}

/// The call ends with INTERNAL; a handler that it has is told.
void connection::end_for_exception(stream& s, const std::exception& e) {
  context_.counters.handler_exceptions.add();
  cancel(s, cancel_reason::internal_error);
  s.set_ending();
  s.end_ = {status_code::internal, e.what()};
}

/// Ends a call for a fault of the request itself, before or beside its handler.
void connection::refuse(stream& s, status why) {
  context_.counters.calls_refused.add();
  cancel(s, cancel_reason::protocol_error);
  end_stream_now(s, std::move(why));
}

void connection::cancel(stream& s, cancel_reason reason) noexcept {
  if (s.handler_ == nullptr || s.ending_) {
    return;
  }
  s.set_ending();
  context_.counters.calls_cancelled.add();
  s.handler_->on_cancel(reason);
}

void connection::release_held_bytes(stream& s) noexcept {
  context_.unfinished_request_bytes -= s.held_bytes_;
  s.held_bytes_ = 0;
}

void connection::close_stream(std::int32_t http2_id, std::uint32_t http2_error) noexcept {
  const auto found = streams_.find(http2_id);
  if (found == streams_.end()) {
    return;
  }
  auto& s = *found->second;
  if (!s.remote_closed_) {
    --unfinished_requests_;
  }
  const bool breach = http2_error == NGHTTP2_PROTOCOL_ERROR || http2_error == NGHTTP2_FLOW_CONTROL_ERROR ||
                      http2_error == NGHTTP2_STREAM_CLOSED || http2_error == NGHTTP2_FRAME_SIZE_ERROR;
  cancel(s, breach ? cancel_reason::protocol_error : cancel_reason::client_reset);
  release_held_bytes(s);
  if (s.dirty_) {
    std::replace(dirty_streams_.begin(), dirty_streams_.end(), &s, static_cast<stream*>(nullptr));
    std::replace(taken_streams_.begin(), taken_streams_.end(), &s, static_cast<stream*>(nullptr));
  }
  if (s.has_deadline_) {
    context_.deadlines.erase(s.deadline_);
  }
  context_.calls.erase(s.id_);
  context_.counters.calls_now.sub();
  streams_.erase(found);
}

// --- responses
// --------------------------------------------------------------------------------------------------------

// One pull into `context_.scratch`, prefix included. `ending_` is set when it says finished, or throws.
pull_result connection::pull(stream& s) {
  auto& scratch = context_.scratch;
  scratch.resize(message_prefix_bytes);
  try {
    const auto result = s.handler_->pull(scratch, s.end_);
    if (result == pull_result::message) {
      write_message_prefix(scratch.data(), static_cast<std::uint32_t>(scratch.size() - message_prefix_bytes));
      context_.counters.messages_written.add();
    } else if (result == pull_result::finished) {
      s.set_ending();
    } else {
      s.idle_ = true;
    }
    return result;
  } catch (const std::exception& e) {
    end_for_exception(s, e);
    return pull_result::finished;
  }
}

/// A stream has something to say: begin its response, or let nghttp2 ask for more of it.
void connection::advance(stream& s) {
  if (s.end_submitted_) {
    return;
  }
  if (s.response_begun_) {
    nghttp2_session_resume_data(session_, s.http2_id_);
    return;
  }
  if (!s.ending_ && s.handler_ != nullptr) {
    const auto result = pull(s);
    if (result == pull_result::nothing_now) {
      return;
    }
    if (result == pull_result::message) {
      s.unsent_.assign(context_.scratch);
    }
  }
  if (!s.unsent_.empty()) {
    begin_response(s);
  } else if (s.ending_) {
    submit_end(s);
  }
}

void connection::begin_response(stream& s) {
  static const std::array<nghttp2_nv, 2> headers{static_header(":status", "200"),
                                                 static_header("content-type", "application/grpc")};
  nghttp2_data_provider provider{};
  provider.source.ptr = &s;
  provider.read_callback = &callbacks::read_data;
  s.response_begun_ = true;
  if (nghttp2_submit_response(session_, s.http2_id_, headers.data(), headers.size(), &provider) != 0) {
    cancel(s, cancel_reason::internal_error);
    submit_reset(s, NGHTTP2_INTERNAL_ERROR);
  }
}

ssize_t connection::fill_data(stream& s, char* buffer, std::size_t room, std::uint32_t& flags) {
  std::size_t filled = 0;
  s.last_progress_ = context_.now;
  for (;;) {
    if (s.unsent_offset_ < s.unsent_.size()) {
      const auto part = std::min(room - filled, s.unsent_.size() - s.unsent_offset_);
      std::memcpy(buffer + filled, s.unsent_.data() + s.unsent_offset_, part);
      filled += part;
      s.unsent_offset_ += part;
      if (s.unsent_offset_ < s.unsent_.size()) {
        return static_cast<ssize_t>(filled);
      }
      if (s.unsent_.capacity() > read_chunk_bytes) {
        std::string{}.swap(s.unsent_);
      }
      s.unsent_.clear();
      s.unsent_offset_ = 0;
    }
    if (s.ending_) {
      flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      submit_end(s);
      return static_cast<ssize_t>(filled);
    }
    if (filled == room) {
      return static_cast<ssize_t>(filled);
    }
    if (s.idle_ || pull(s) == pull_result::nothing_now) {
      return filled > 0 ? static_cast<ssize_t>(filled) : static_cast<ssize_t>(NGHTTP2_ERR_DEFERRED);
    }
    if (s.ending_) {
      continue;
    }
    const auto& message = context_.scratch;
    const auto part = std::min(room - filled, message.size());
    std::memcpy(buffer + filled, message.data(), part);
    filled += part;
    if (part < message.size()) {
      s.unsent_.assign(message, part);
      return static_cast<ssize_t>(filled);
    }
  }
}

/// Trailers after data, or trailers-only when the response has not begun.
void connection::submit_end(stream& s) {
  if (std::exchange(s.end_submitted_, true)) {
    return;
  }
  std::array<nghttp2_nv, 5> headers;
  std::size_t count = 0;
  if (!s.response_begun_) {
    headers[count++] = static_header(":status", "200");
    headers[count++] = static_header("content-type", "application/grpc");
  }
  headers[count++] = static_header("grpc-status", code_text(s.end_.code));
  std::string text;
  if (!s.end_.message.empty()) {
    text = percent_encode(cut_text(s.end_.message, status_message_bytes_max));
    headers[count++] = header("grpc-message", text);
  }
  if (!s.response_begun_ && s.end_.code == status_code::unimplemented) {
    headers[count++] = static_header("grpc-accept-encoding", "identity");
  }
  const int submitted = s.response_begun_
                            ? nghttp2_submit_trailer(session_, s.http2_id_, headers.data(), count)
                            : nghttp2_submit_response(session_, s.http2_id_, headers.data(), count, nullptr);
  s.response_begun_ = true;
  if (submitted != 0) {
    submit_reset(s, NGHTTP2_INTERNAL_ERROR);
  }
  mark_dirty();
}

void connection::submit_reset(stream& s, std::uint32_t http2_error) {
  s.end_submitted_ = true;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, s.http2_id_, http2_error);
  mark_dirty();
}

/// A client that does not speak gRPC gets an HTTP status and nothing else.
void connection::respond_plain(stream& s, const char* http_status) {
  context_.counters.calls_refused.add();
  s.ending_ = s.end_submitted_ = s.response_begun_ = true;
  const std::array<nghttp2_nv, 1> headers{header(":status", http_status)};
  nghttp2_submit_response(session_, s.http2_id_, headers.data(), headers.size(), nullptr);
  mark_dirty();
}

void connection::end_stream_now(stream& s, status why) {
  if (s.end_submitted_) {
    return;
  }
  s.set_ending();
  const auto code = why.code;
  s.end_ = std::move(why);
  if (!s.response_begun_) {
    submit_end(s);
    return;
  }
  // Trailers stand behind the rest of a message that is half sent, and behind the windows.
  const bool room = nghttp2_session_get_stream_remote_window_size(session_, s.http2_id_) > 0 &&
                    nghttp2_session_get_remote_window_size(session_) > 0;
  if (s.unsent_offset_ == s.unsent_.size() && room) {
    s.resume();
  } else {
    submit_reset(s, reset_code(code));
  }
}

void connection::expire(stream& s) {
  if (std::exchange(s.has_deadline_, false)) {
    context_.deadlines.erase(s.deadline_);
  }
  cancel(s, cancel_reason::deadline);
  end_stream_now(s, {status_code::deadline_exceeded, "the deadline of the call has passed"});
}

void connection::end_all(const status& why) {
  std::vector<stream*> open;
  open.reserve(streams_.size());
  for (auto& [http2_id, s] : streams_) {
    open.push_back(s.get());
  }
  for (auto* s : open) {
    cancel(*s, cancel_reason::shutting_down);
    end_stream_now(*s, why);
  }
}

// --- drain and time limits
// --------------------------------------------------------------------------------------------

void connection::begin_drain() {
  if (std::exchange(draining_, true)) {
    return;
  }
  // Two GOAWAYs with a PING between them: streams that the client opened before it saw the first one are still served.
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, drain_ping.data());
  mark_dirty();
}

void connection::finish_goaway() {
  if (std::exchange(goaway_final_, true)) {
    return;
  }
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_NO_ERROR, nullptr, 0);
  mark_dirty();
}

bool connection::needs_tick() const noexcept {
  return !settings_seen_ || unfinished_requests_ > 0 || !out_.empty();
}

void connection::end_stalled_streams() {
  const auto& limits = context_.options;
  std::vector<stream*> stalled;
  for (auto& [http2_id, s] : streams_) {
    const auto since = context_.now - s->last_progress_;
    const bool unfinished = !s->remote_closed_ && !s->bidirectional_;
    const bool sends_nothing =
        unfinished && (since > limits.request_stall_max || context_.now - s->opened_ > limits.request_whole_max);
    const bool takes_nothing = s->response_begun_ && !s->idle_ && since > limits.write_stall_max;
    if (!s->end_submitted_ && (sends_nothing || takes_nothing)) {
      stalled.push_back(s.get());
    }
  }
  for (auto* s : stalled) {
    if (!s->response_begun_) {
      refuse(*s, {status_code::deadline_exceeded, "the request was not complete in time"});
    } else {
      cancel(*s, cancel_reason::slow_client);
      end_stream_now(
          *s, {status_code::resource_exhausted, "slow_client: the client took nothing of its stream for too long"});
    }
  }
}

bool connection::on_tick() {
  const auto& limits = context_.options;
  const auto now = context_.now;
  if (handshaking_) {
    if (now - opened_ <= limits.tls_handshake_max) {
      return true;
    }
    context_.counters.count(tls_failure::time_limit);
    return false;
  }
  if (!settings_seen_ && now - opened_ > limits.preface_max) {
    close_reason_ = cancel_reason::protocol_error;
    return false;
  }
  if (!out_.empty() && now - last_write_ > limits.write_stall_max) {
    close_reason_ = cancel_reason::slow_client;
    return false;
  }
  end_stalled_streams();
  if (ping_open_ && now - ping_sent_ > limits.keepalive_timeout) {
    return false;
  }
  if (!ping_open_ && now - last_read_ > limits.keepalive_interval) {
    ping_open_ = true;
    ping_sent_ = now;
    nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, keepalive_ping.data());
    mark_dirty();
  }
  return true;
}

} // namespace rankwise::io::grpc
