#include "app/bench/bench_server.hpp"

#include "app/bench/bench_measure.hpp"
#include "app/bench/bench_ranks.hpp"
#include "io/front/sglang_scheduler.grpc.pb.h"
#include "io/grpc/server.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>
#include <grpcpp/grpcpp.h>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>

namespace rankwise::app {

namespace {

namespace pb = ::sglang::grpc::scheduler;
namespace sg = wire::sglang;
using clock = std::chrono::steady_clock;

constexpr std::size_t batches_per_round_max = 8; // or new requests would wait for as long as tokens come

core::generate_request to_core(const pb::GenerateRequest& from) {
  core::generate_request to;
  to.rid = from.request_id();
  to.input_ids.assign(from.tokenized().input_ids().begin(), from.tokenized().input_ids().end());
  to.sampling.max_new_tokens = static_cast<std::int32_t>(from.sampling_params().max_new_tokens());
  to.sampling.ignore_eos = from.sampling_params().ignore_eos();
  return to;
}

/// What of an answer has not been written yet, and how it is written.
struct pending_answer {
  std::string rid;
  std::vector<std::uint32_t> ids; // all of them, for the completion
  std::size_t sent = 0;
  std::uint32_t prompt_tokens = 0;
  bool finished = false;
  bool completed = false; // the completion was written

  void take(const sg::token_output& batch, const sg::output_item& item) {
    const auto* from = reinterpret_cast<const std::uint32_t*>(batch.tokens.data()) + item.token_offset;
    ids.insert(ids.end(), from, from + item.token_count);
    prompt_tokens = item.prompt_tokens;
    finished = finished || item.finish != core::finish_reason::none;
  }
  /// False: nothing to write now.
  bool next(pb::GenerateResponse& out) {
    if (sent < ids.size()) {
      out.set_request_id(rid);
      auto& chunk = *out.mutable_chunk();
      chunk.mutable_token_ids()->Clear();
      chunk.mutable_token_ids()->Add(ids.begin() + static_cast<std::ptrdiff_t>(sent), ids.end());
      chunk.set_prompt_tokens(prompt_tokens);
      chunk.set_completion_tokens(static_cast<std::uint32_t>(ids.size()));
      sent = ids.size();
      return true;
    }
    if (!finished || completed)
      return false;
    completed = true;
    out.set_request_id(rid);
    auto& complete = *out.mutable_complete();
    complete.Clear();
    complete.mutable_output_ids()->Add(ids.begin(), ids.end());
    complete.set_finish_reason("length");
    complete.set_prompt_tokens(prompt_tokens);
    complete.set_completion_tokens(static_cast<std::uint32_t>(ids.size()));
    return true;
  }
};

class dispatch_times {
 public:
  void add(clock::time_point since) {
    if (us_.size() < 10'000'000)
      us_.push_back(std::chrono::duration<float, std::micro>(clock::now() - since).count());
  }
  void print() { std::cout << "dispatch_us=" << quantile(us_, 0.5) << " " << quantile(us_, 0.99) << std::endl; }

 private:
  std::vector<float> us_;
};

// -- grpc++ ----------------------------------------------------------------------------------------------------------

class grpcpp_server;

class reactor final : public grpc::ServerWriteReactor<pb::GenerateResponse> {
 public:
  reactor(grpcpp_server& server, std::uint64_t handle, std::string rid) : server_(server), handle_(handle) {
    answer_.rid = std::move(rid);
  }
  void take(const sg::token_output& batch, const sg::output_item& item) {
    const std::lock_guard guard{mutex_};
    answer_.take(batch, item);
    if (!writing_)
      write();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard guard{mutex_};
    writing_ = false;
    if (ok)
      write();
    else
      finish();
  }
  void OnCancel() override {
    const std::lock_guard guard{mutex_};
    if (!writing_)
      finish();
  }
  void OnDone() override;

 private:
  void finish() {
    if (!std::exchange(ended_, true))
      Finish(grpc::Status::OK);
  }
  void write() {
    if (ended_)
      return;
    if (answer_.next(response_)) {
      writing_ = true;
      StartWrite(&response_);
    } else if (answer_.completed) {
      finish();
    }
  }

  grpcpp_server& server_;
  const std::uint64_t handle_;
  std::mutex mutex_;
  pending_answer answer_;
  pb::GenerateResponse response_;
  bool writing_ = false;
  bool ended_ = false;
};

class grpcpp_server final : public pb::SglangScheduler::CallbackService {
 public:
  explicit grpcpp_server(const bench_server_options& options)
      : ranks_(options.ranks, options.folder), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~grpcpp_server() override { ::close(wake_); }

  grpc::ServerWriteReactor<pb::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const pb::GenerateRequest* request) override {
    const auto handle = next_.fetch_add(1, std::memory_order_relaxed) + 1;
    auto answer = std::make_shared<reactor>(*this, handle, request->request_id());
    {
      const std::lock_guard guard{mutex_};
      streams_.emplace(handle, answer);
      arrived_.push_back({clock::now(), handle, to_core(*request)});
    }
    ring();
    return answer.get();
  }
  void gone(std::uint64_t handle) {
    const std::lock_guard guard{mutex_};
    streams_.erase(handle);
  }

  int run(int signals) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    const auto server = builder.BuildAndStart();
    std::cout << "grpc=127.0.0.1:" << port << "\nhandshake=bench:" << ranks_.handshake_endpoint() << std::endl;
    bool ready = false;
    for (;;) {
      auto items = ranks_.poll_items();
      items.push_back({nullptr, wake_, ZMQ_POLLIN, 0});
      items.push_back({nullptr, signals, ZMQ_POLLIN, 0});
      zmq::poll(items, std::chrono::milliseconds{-1});
      if (items[4].revents != 0)
        break;
      if (items[3].revents != 0)
        dispatch();
      ranks_.read([this](const sg::token_output& batch) { deliver(batch); }, batches_per_round_max);
      if (!ready && ranks_.complete()) {
        ready = true;
        std::cout << "READY" << std::endl;
      }
    }
    times_.print();
    server->Shutdown(std::chrono::system_clock::now());
    return 0;
  }

 private:
  struct arrival {
    clock::time_point at;
    std::uint64_t handle = 0;
    core::generate_request request;
  };

  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  }
  void dispatch() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(wake_, &count, sizeof count);
    std::vector<arrival> arrived;
    {
      const std::lock_guard guard{mutex_};
      arrived.swap(arrived_);
    }
    for (const auto& a : arrived) {
      ranks_.add(a.request, a.handle);
      times_.add(a.at);
    }
  }
  void deliver(const sg::token_output& batch) {
    found_.clear();
    {
      const std::lock_guard guard{mutex_};
      for (const auto& item : batch.items) {
        const auto rid = sg::parse_engine_rid(item.rid);
        const auto stream = rid ? streams_.find(rid->handle) : streams_.end();
        found_.push_back(stream == streams_.end() ? nullptr : stream->second);
      }
    }
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (found_[i])
        found_[i]->take(batch, batch.items[i]);
    found_.clear();
  }

  bench_ranks ranks_;
  const int wake_;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_; // guards the two below
  std::unordered_map<std::uint64_t, std::shared_ptr<reactor>> streams_;
  std::vector<arrival> arrived_;
  std::vector<std::shared_ptr<reactor>> found_;
  dispatch_times times_;
};

void reactor::OnDone() {
  server_.gone(handle_); // the last owner, but for a delivery under way
}

// -- bare ------------------------------------------------------------------------------------------------------------

class bare_call final : public io::grpc::call_handler {
 public:
  bare_call(io::grpc::call& call, std::string rid, pb::GenerateResponse& response) : call_(call), response_(response) {
    answer_.rid = std::move(rid);
  }
  void take(const sg::token_output& batch, const sg::output_item& item) {
    answer_.take(batch, item);
    call_.resume();
  }
  io::grpc::pull_result pull(std::string& out, io::grpc::status&) override {
    if (answer_.next(response_)) {
      response_.AppendToString(&out);
      return io::grpc::pull_result::message;
    }
    return answer_.completed ? io::grpc::pull_result::finished : io::grpc::pull_result::nothing_now;
  }

 private:
  io::grpc::call& call_;
  pending_answer answer_;
  pb::GenerateResponse& response_;
};

class bare_server {
 public:
  explicit bare_server(const bench_server_options& options) : ranks_(options.ranks, options.folder), server_({}) {
    server_.add_streaming(
        "/sglang.grpc.scheduler.SglangScheduler/Generate",
        [this](io::grpc::call& call,
               std::string_view bytes) -> tl::expected<std::unique_ptr<io::grpc::call_handler>, io::grpc::status> {
          const auto arrived = clock::now();
          pb::GenerateRequest request;
          if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
            return tl::unexpected(io::grpc::status{io::grpc::status_code::invalid_argument, "not a request"});
          ranks_.add(to_core(request), call.id());
          times_.add(arrived);
          return std::make_unique<bare_call>(call, request.request_id(), response_);
        });
    server_.on_wake([this] { receive(); });
  }

  int run(int signals) {
    if (const auto started = server_.start(); !started) {
      std::cerr << started.error() << "\n";
      return 1;
    }
    std::cout << "grpc=127.0.0.1:" << server_.port() << "\nhandshake=bench:" << ranks_.handshake_endpoint()
              << std::endl;
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    const auto watch = [&](int fd, std::uint32_t events) {
      epoll_event event{};
      event.events = events;
      event.data.fd = fd;
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    };
    for (const int fd : ranks_.descriptors())
      watch(fd, EPOLLIN | EPOLLET);
    watch(signals, EPOLLIN);
    server_.wake(); // whatever came before the watch
    for (bool running = true; running;) {
      epoll_event events[4];
      const int count = ::epoll_wait(epoll, events, 4, -1);
      for (int i = 0; i < count; ++i)
        running = running && events[i].data.fd != signals;
      server_.wake();
    }
    server_.stop();
    times_.print();
    ::close(epoll);
    return 0;
  }

 private:
  void receive() {
    ranks_.read(
        [this](const sg::token_output& batch) {
          for (const auto& item : batch.items)
            if (const auto rid = sg::parse_engine_rid(item.rid))
              if (auto* handler = server_.find(rid->handle); handler != nullptr)
                static_cast<bare_call*>(handler)->take(batch, item);
        },
        std::numeric_limits<std::size_t>::max()); // the descriptors tell of changes only
    if (!ready_ && ranks_.complete()) {
      ready_ = true;
      std::cout << "READY" << std::endl;
    }
  }

  bench_ranks ranks_;
  pb::GenerateResponse response_;
  dispatch_times times_;
  bool ready_ = false;
  io::grpc::server server_; // last: its thread ends first
};

} // namespace

int run_bench_server(const bench_server_options& options) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const int fd = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  try {
    if (options.kind == "bare")
      return bare_server{options}.run(fd);
    return grpcpp_server{options}.run(fd);
  } catch (const std::exception& e) {
    std::cerr << "rankwise bench-server: " << e.what() << "\n";
    return 1;
  }
}

} // namespace rankwise::app
