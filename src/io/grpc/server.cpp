#include "io/grpc/server.hpp"

#include "io/grpc/connection.hpp"
#include "io/grpc/listener.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

namespace rankwise::io::grpc {

namespace {

constexpr int events_per_round_max = 256;
constexpr int accepts_per_round_max = 64;
constexpr std::size_t handshake_steps_per_round_max = 4; // one with an RSA key costs about a millisecond
constexpr std::size_t scratch_kept_bytes = 1 << 20;
constexpr std::chrono::seconds tick_interval{1};
constexpr std::chrono::seconds idle_tick_interval{10};
constexpr std::chrono::milliseconds accept_pause{100};      // out of file descriptors
constexpr std::chrono::milliseconds goaway_answer_max{250}; // for the PING between the two GOAWAYs
constexpr std::chrono::milliseconds last_flush_max{500};    // for statuses of calls that outlived the drain

} // namespace

class server::impl {
 public:
  explicit impl(server_options o) : context(std::move(o)), event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    // Limits are kept to within a quarter of the shortest.
    constexpr std::chrono::milliseconds tick_min{10};
    const auto& limits = context.options;
    busy_tick_ = std::clamp<std::chrono::milliseconds>(
        std::min({limits.tls_handshake_max, limits.preface_max, limits.request_stall_max, limits.request_whole_max,
                  limits.write_stall_max}) /
            4,
        tick_min, tick_interval);
    idle_tick_ = std::clamp<std::chrono::milliseconds>(
        std::min({limits.keepalive_interval, limits.keepalive_timeout, limits.write_stall_max}) / 4, tick_min,
        idle_tick_interval);
  }

  tl::expected<void, std::string> start();
  void run();
  void wake() noexcept;
  void post(std::function<void()> fn);
  bool drain(std::chrono::milliseconds timeout);
  void hurry();
  void stop() noexcept;

  void after(std::chrono::milliseconds delay, std::function<void()> fn) {
    timers_.emplace(std::chrono::steady_clock::now() + delay, std::move(fn));
  }

  io_context context;
  std::function<void()> woken;
  std::uint16_t port = 0;

 private:
  enum class phase : std::uint8_t { serving, draining, last_flush, stopped };

  void accept_some();
  void watch_listener(bool on);
  void handle_wake();
  void handle_connection(int fd, std::uint32_t events);
  void flush_dirty();
  void expire_deadlines();
  void run_timers();
  void guarded(const std::function<void()>& f) noexcept;
  void tick();
  void watch(connection& c);
  void close(int fd);
  void begin_drain(std::chrono::milliseconds timeout);
  void step_drain();
  [[nodiscard]] int wait_ms() const;
  [[nodiscard]] bool all_quiet() const;

  unique_fd epoll_;
  unique_fd event_;
  unique_fd listening_;
  std::thread thread_;
  std::unordered_map<int, std::unique_ptr<connection>> connections_;
  std::unordered_map<int, bool> watched_writable_;

  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> stop_wanted_{false};
  std::mutex mutex_; ///< Guards the five below.
  std::condition_variable ended_;
  std::vector<std::function<void()>> posted_;
  bool running_ = false;
  bool clean_ = true;
  bool started_ = false;

  std::multimap<steady_time, std::function<void()>> timers_;
  phase phase_ = phase::serving;
  std::chrono::milliseconds busy_tick_{};
  std::chrono::milliseconds idle_tick_{};
  steady_time next_tick_{};
  steady_time drain_began_{};
  steady_time drain_until_{};
  bool hurried_ = false;
};

tl::expected<void, std::string> server::impl::start() {
  if (context.options.tls.wanted()) {
    auto loaded = tls_context::load(context.options.tls);
    if (!loaded) {
      return tl::unexpected("TLS " + std::string{loaded.error().option} + ": " + loaded.error().what);
    }
    context.tls = std::move(*loaded);
  }
  auto bound = listen_on(context.options.listen);
  if (!bound) {
    return tl::unexpected(bound.error());
  }
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !event_) {
    return tl::unexpected(std::string{"epoll or eventfd: "} + std::strerror(errno));
  }
  listening_ = std::move(bound->socket);
  port = bound->port;
  for (const int fd : {listening_.get(), event_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return tl::unexpected(std::string{"epoll_ctl: "} + std::strerror(errno));
    }
  }
  const std::lock_guard lock{mutex_};
  running_ = true;
  started_ = true;
  thread_ = std::thread{[this] {
    ::pthread_setname_np(::pthread_self(), "rw-grpc");
    run();
  }};
  return {};
}

void server::impl::run() {
  // OpenSSL writes to sockets without MSG_NOSIGNAL.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  context.now = std::chrono::steady_clock::now();
  next_tick_ = context.now + tick_interval;
  std::array<epoll_event, events_per_round_max> events;
  while (!stop_wanted_.load(std::memory_order_acquire) && phase_ != phase::stopped) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events_per_round_max, wait_ms());
    context.now = std::chrono::steady_clock::now();
    context.handshake_steps_left = handshake_steps_per_round_max;
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == event_.get()) {
        handle_wake();
      } else if (listening_ && fd == listening_.get()) {
        accept_some();
      } else {
        handle_connection(fd, events[static_cast<std::size_t>(i)].events);
      }
    }
    expire_deadlines();
    run_timers();
    if (context.now >= next_tick_) {
      tick();
    }
    step_drain();
    flush_dirty();
  }
  for (auto& [fd, c] : connections_) {
    c->close_reason(cancel_reason::shutting_down);
  }
  connections_.clear();
  timers_.clear();
  context.counters.connections_now.sub(context.counters.connections_now.get());
  listening_.reset();
  const std::lock_guard lock{mutex_};
  posted_.clear();
  running_ = false;
  ended_.notify_all();
}

int server::impl::wait_ms() const {
  if (!context.dirty.empty()) {
    return 0;
  }
  auto until = next_tick_;
  if (!context.deadlines.empty()) {
    until = std::min(until, context.deadlines.begin()->first);
  }
  if (!timers_.empty()) {
    until = std::min(until, timers_.begin()->first);
  }
  if (phase_ != phase::serving) {
    until = std::min(until, std::min(drain_until_, context.now + std::chrono::milliseconds{20}));
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void server::impl::watch_listener(bool on) {
  if (!listening_) {
    return; // draining
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listening_.get();
  ::epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listening_.get(), &event);
}

void server::impl::accept_some() {
  for (int i = 0; i < accepts_per_round_max; ++i) {
    auto got = accept_from(listening_.get());
    if (got.error != 0) {
      // Out of descriptors: the connection stays in the backlog, and polling for it would spin.
      context.counters.connections_refused.add();
      watch_listener(false);
      after(accept_pause, [this] { watch_listener(true); });
      return;
    }
    if (!got.socket) {
      return;
    }
    if (connections_.size() >= context.options.connections_max) {
      context.counters.connections_refused.add();
      continue;
    }
    const int fd = got.socket.get();
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      context.counters.connections_refused.add();
      continue;
    }
    try {
      context.dirty.reserve(connections_.size() + 1);
      connections_.emplace(fd, std::make_unique<connection>(context, std::move(got.socket), std::move(got.peer)));
      watched_writable_[fd] = false;
    } catch (const std::exception&) {
      context.counters.connections_refused.add();
      continue;
    }
    context.counters.connections_accepted.add();
    context.counters.connections_now.add();
  }
}

void server::impl::handle_wake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof(count));
  // Cleared before the queues are looked at: what is queued after that wakes us again.
  wake_pending_.exchange(false, std::memory_order_acq_rel);
  context.counters.wakes.add();
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock{mutex_};
    posted.swap(posted_);
  }
  for (const auto& f : posted) {
    guarded(f);
  }
  if (woken) {
    guarded(woken);
  }
}

void server::impl::guarded(const std::function<void()>& f) noexcept {
  try {
    f();
  } catch (...) {
    context.counters.handler_exceptions.add();
  }
}

void server::impl::run_timers() {
  while (!timers_.empty() && timers_.begin()->first <= context.now) {
    const auto due = timers_.extract(timers_.begin());
    guarded(due.mapped());
  }
}

void server::impl::handle_connection(int fd, std::uint32_t events) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) {
    return;
  }
  auto& c = *found->second;
  bool alive = true;
  if ((events & EPOLLOUT) != 0) {
    alive = c.on_writable();
  }
  // Bytes that came before a hang-up are read first: the last of them may complete a request's cancel.
  if (alive && (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
    alive = c.on_readable();
  }
  if (!alive) {
    close(fd);
  }
}

void server::impl::flush_dirty() {
  // What becomes dirty while this runs (a connection with more than one round's bytes) waits for the next round.
  auto list = std::exchange(context.dirty, {});
  context.dirty.reserve(connections_.size());
  for (auto* c : list) {
    c->unmark_dirty();
  }
  for (auto* c : list) {
    if (!c->flush()) {
      const int fd = c->fd();
      // GOAWAY or the like may still stand in the buffer; one try is all it gets.
      close(fd);
      continue;
    }
    watch(*c);
  }
  if (context.scratch.capacity() > scratch_kept_bytes) {
    std::string{}.swap(context.scratch);
  }
}

void server::impl::watch(connection& c) {
  if (c.needs_tick()) {
    next_tick_ = std::min(next_tick_, context.now + busy_tick_);
  }
  auto& watched = watched_writable_[c.fd()];
  if (watched == c.wants_writable()) {
    return;
  }
  watched = c.wants_writable();
  epoll_event event{};
  event.events =
      static_cast<std::uint32_t>(EPOLLIN | EPOLLRDHUP) | (watched ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.fd = c.fd();
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.fd(), &event);
}

void server::impl::close(int fd) {
  watched_writable_.erase(fd);
  if (connections_.erase(fd) > 0) {
    context.counters.connections_now.sub();
  }
}

void server::impl::expire_deadlines() {
  while (!context.deadlines.empty() && context.deadlines.begin()->first <= context.now) {
    auto* s = context.calls.find(context.deadlines.begin()->second);
    if (s == nullptr) {
      context.deadlines.erase(context.deadlines.begin());
      continue;
    }
    s->owner().expire(*s);
  }
}

void server::impl::tick() {
  std::vector<int> over;
  bool soon = false;
  for (auto& [fd, c] : connections_) {
    if (!c->on_tick()) {
      over.push_back(fd);
    } else {
      soon = soon || c->needs_tick();
    }
  }
  for (const int fd : over) {
    close(fd);
  }
  next_tick_ = context.now + (soon ? busy_tick_ : idle_tick_);
}

// --- drain
// ------------------------------------------------------------------------------------------------------------

void server::impl::begin_drain(std::chrono::milliseconds timeout) {
  if (phase_ != phase::serving) {
    return;
  }
  phase_ = phase::draining;
  drain_began_ = context.now;
  drain_until_ = hurried_ ? context.now : context.now + timeout;
  listening_.reset();
  for (auto& [fd, c] : connections_) {
    c->begin_drain();
  }
}

bool server::impl::all_quiet() const {
  for (const auto& [fd, c] : connections_) {
    if (c->open_calls() > 0 || c->unsent() || !c->goaway_final()) {
      return false;
    }
  }
  return context.dirty.empty();
}

void server::impl::step_drain() {
  if (phase_ == phase::serving) {
    return;
  }
  if (context.now - drain_began_ > goaway_answer_max) {
    for (auto& [fd, c] : connections_) {
      c->finish_goaway();
    }
  }
  if (all_quiet()) {
    phase_ = phase::stopped;
    return;
  }
  if (context.now < drain_until_) {
    return;
  }
  if (phase_ == phase::draining) {
    phase_ = phase::last_flush;
    drain_until_ = context.now + last_flush_max;
    {
      const std::lock_guard lock{mutex_};
      clean_ = context.counters.calls_now.get() == 0;
    }
    for (auto& [fd, c] : connections_) {
      c->finish_goaway();
      c->end_all({status_code::unavailable, "shutting_down: the time of the drain is over"});
    }
    return;
  }
  phase_ = phase::stopped;
}

// --- from other threads
// -----------------------------------------------------------------------------------------------

void server::impl::wake() noexcept {
  if (!wake_pending_.exchange(true, std::memory_order_acq_rel)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
  }
}

void server::impl::post(std::function<void()> fn) {
  {
    const std::lock_guard lock{mutex_};
    if (!running_) {
      return;
    }
    posted_.push_back(std::move(fn));
  }
  wake();
}

void server::impl::hurry() {
  post([this] {
    hurried_ = true;
    if (phase_ == phase::draining) {
      drain_until_ = context.now;
    }
  });
}

bool server::impl::drain(std::chrono::milliseconds timeout) {
  post([this, timeout] { begin_drain(timeout); });
  {
    std::unique_lock lock{mutex_};
    // The loop ends the drain by itself; the margin is for a loop that is stuck in a handler.
    ended_.wait_for(lock, timeout + last_flush_max + std::chrono::seconds{5}, [this] { return !running_; });
  }
  stop();
  const std::lock_guard lock{mutex_};
  return clean_;
}

void server::impl::stop() noexcept {
  stop_wanted_.store(true, std::memory_order_release);
  if (event_) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

// --- the public face
// --------------------------------------------------------------------------------------------------

server::server(server_options options) : impl_(std::make_unique<impl>(std::move(options))) {}

server::~server() {
  stop();
}

void server::add_unary(std::string path, unary_method method) {
  impl_->context.methods.insert_or_assign(std::move(path), std::move(method));
}

void server::add_streaming(std::string path, streaming_method method) {
  impl_->context.methods.insert_or_assign(std::move(path), std::move(method));
}

void server::add_bidirectional(std::string path, bidirectional_method method) {
  impl_->context.methods.insert_or_assign(std::move(path), std::move(method));
}

void server::on_wake(std::function<void()> callback) {
  impl_->woken = std::move(callback);
}

tl::expected<void, std::string> server::start() {
  return impl_->start();
}

std::uint16_t server::port() const noexcept {
  return impl_->port;
}

server_counters server::counters() const noexcept {
  const auto& c = impl_->context.counters;
  server_counters out{c.connections_accepted.get(),
                      c.connections_refused.get(),
                      c.connections_now.get(),
                      c.calls_started.get(),
                      c.calls_refused.get(),
                      c.calls_cancelled.get(),
                      c.calls_now.get(),
                      c.bytes_read.get(),
                      c.bytes_written.get(),
                      c.messages_read.get(),
                      c.messages_written.get(),
                      c.writes.get(),
                      c.tls_handshakes.get(),
                      0, // summed up below
                      c.resets_received.get(),
                      c.protocol_errors.get(),
                      c.handler_exceptions.get(),
                      c.wakes.get(),
                      {},
                      {}};
  for (std::size_t i = 0; i < tls_failure_count; ++i) {
    out.tls_failures[i] = c.tls_failures[i].get();
    out.tls_handshakes_failed += out.tls_failures[i];
  }
  for (std::size_t i = 0; i < flood_kind_count; ++i) {
    out.floods[i] = c.floods[i].get();
  }
  return out;
}

void server::wake() noexcept {
  impl_->wake();
}

void server::after(std::chrono::milliseconds delay, std::function<void()> fn) {
  impl_->after(delay, std::move(fn));
}

void server::post(std::function<void()> fn) {
  impl_->post(std::move(fn));
}

call_handler* server::find(call_id id) const noexcept {
  return impl_->context.calls.handler(id);
}

void server::resume(call_id id) noexcept {
  if (auto* s = impl_->context.calls.find(id); s != nullptr) {
    s->resume();
  }
}

void server::prefetch(call_id id) const noexcept {
  impl_->context.calls.prefetch(id);
}

bool server::drain(std::chrono::milliseconds timeout) {
  return impl_->drain(timeout);
}

void server::hurry() {
  impl_->hurry();
}

void server::stop() noexcept {
  impl_->stop();
}

} // namespace rankwise::io::grpc
