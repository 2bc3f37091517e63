#include "app/bench/bench_client.hpp"

#include "app/bench/bench_connection.hpp"
#include "app/bench/bench_measure.hpp"
#include "io/front/sglang_scheduler.pb.h"
#include "wire/sglang/engine_rid.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

namespace rankwise::app {

namespace {

namespace pb = ::sglang::grpc::scheduler;
using clock = std::chrono::steady_clock;

clock::duration seconds(double s) {
  return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(s));
}

std::string request_bytes(const std::string& rid, std::uint32_t prompt_tokens, std::uint32_t tokens) {
  pb::GenerateRequest request;
  request.set_request_id(rid);
  for (std::uint32_t i = 0; i < prompt_tokens; ++i)
    request.mutable_tokenized()->add_input_ids(1 + i);
  request.set_stream(true);
  request.set_logprob_start_len(-1);
  auto& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_top_k(-1);
  sampling.set_repetition_penalty(1);
  sampling.set_max_new_tokens(tokens);
  sampling.set_n(1);
  sampling.set_ignore_eos(true);
  sampling.set_skip_special_tokens(true);
  sampling.set_spaces_between_special_tokens(true);
  return request.SerializeAsString();
}

/// What has come of one request so far.
struct answer {
  std::string rid;
  std::uint32_t crc = 0;
  std::uint32_t tokens_wanted = 0;
  std::uint64_t tokens = 0;
  bool complete = false;
  clock::time_point last{};
};

class client {
 public:
  client(const std::string& target, std::uint32_t connections) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    told_.on_message = [this](std::uint32_t tag, std::string_view message) { take(tag, message); };
    told_.on_end = [this](std::uint32_t tag, int status, const std::string& text) {
      const auto& a = answers_[tag];
      if (!a.complete || status != 0)
        fail(a.rid + " ended with status " + std::to_string(status) + " " + text);
      ++ended_;
    };
    for (std::uint32_t i = 0; i < std::max(connections, 1U); ++i) {
      auto& c = connections_.emplace_back(std::make_unique<bench_connection>(target, told_));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u32 = i;
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, c->fd(), &event) != 0)
        throw std::runtime_error("epoll_ctl failed");
    }
  }

  void start(const std::string& rid, std::uint32_t prompt_tokens, std::uint32_t tokens) {
    const auto tag = static_cast<std::uint32_t>(answers_.size());
    answers_.push_back({rid, wire::sglang::rid_crc32(rid), tokens, 0, false, {}});
    connections_[tag % connections_.size()]->start(tag, "/sglang.grpc.scheduler.SglangScheduler/Generate",
                                                   request_bytes(rid, prompt_tokens, tokens));
  }

  void flush() {
    for (auto& c : connections_)
      c->flush();
  }

  /// Reads and writes until `until`, and at least once.
  void run(clock::time_point until) {
    do {
      const auto left = std::max(until - clock::now(), clock::duration{});
      const timespec wait{static_cast<time_t>(std::chrono::floor<std::chrono::seconds>(left).count()),
                          static_cast<long>((left % std::chrono::seconds{1}).count())};
      std::array<epoll_event, 16> events; // NOLINT: filled by the kernel
      const int count = ::epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()), &wait, nullptr);
      for (int i = 0; i < count; ++i)
        connections_[events[static_cast<std::size_t>(i)].data.u32]->read();
      flush(); // window updates; what a full socket did not take is tried again with the next answers
    } while (clock::now() < until && error_.empty());
  }

  void count_from_now() { counting_ = true; }
  [[nodiscard]] std::uint32_t ended() const noexcept { return ended_; }
  [[nodiscard]] std::uint32_t completed() const {
    return static_cast<std::uint32_t>(
        std::count_if(answers_.begin(), answers_.end(), [](const answer& a) { return a.complete; }));
  }
  [[nodiscard]] std::uint64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::vector<float>& gaps_s() noexcept { return gaps_s_; }
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

 private:
  void fail(std::string why) {
    if (error_.empty())
      error_ = std::move(why);
  }

  void take(std::uint32_t tag, std::string_view bytes) {
    auto& a = answers_[tag];
    if (!message_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
      return fail(a.rid + " brought what is no response");
    if (message_.has_complete()) {
      a.complete = message_.complete().completion_tokens() == a.tokens && a.tokens == a.tokens_wanted;
      return;
    }
    for (const auto token : message_.chunk().token_ids())
      if (static_cast<std::int32_t>(token) != wire::sglang::expected_token(a.crc, a.tokens++))
        fail(a.rid + " brought a wrong token " + std::to_string(a.tokens - 1));
    if (message_.chunk().completion_tokens() != a.tokens)
      fail(a.rid + " counts " + std::to_string(message_.chunk().completion_tokens()) + " tokens, not " +
           std::to_string(a.tokens));
    if (!counting_)
      return;
    const auto now = clock::now();
    tokens_ += static_cast<std::uint64_t>(message_.chunk().token_ids_size());
    if (a.last != clock::time_point{})
      gaps_s_.push_back(std::chrono::duration<float>(now - a.last).count());
    a.last = now;
  }

  bench_connection::events told_;
  io::grpc::unique_fd epoll_;
  std::vector<std::unique_ptr<bench_connection>> connections_;
  std::vector<answer> answers_; // by tag
  pb::GenerateResponse message_;
  std::vector<float> gaps_s_;
  std::uint64_t tokens_ = 0;
  std::uint32_t ended_ = 0;
  bool counting_ = false;
  std::string error_;
};

} // namespace

bench_streams_result run_bench_streams(const bench_streams_options& o) {
  constexpr std::uint32_t endless = 1'000'000; // tokens; the streams are cut off with their connections
  bench_streams_result result;
  try {
    client c{o.target, o.connections};
    for (std::uint32_t i = 0; i < o.streams; ++i)
      c.start("bench-" + std::to_string(::getpid()) + "-" + std::to_string(i), 1, endless);
    c.flush();
    c.run(clock::now() + seconds(o.warm_up_s));
    c.count_from_now();
    const auto began = clock::now();
    const auto cpu = o.cpu();
    c.run(began + seconds(o.seconds));
    result.cpu_s = o.cpu() - cpu;
    result.seconds = std::chrono::duration<double>(clock::now() - began).count();
    result.tokens = c.tokens();
    result.chunks = c.gaps_s().size();
    result.gap_p50_ms = 1e3 * quantile(c.gaps_s(), 0.5);
    result.gap_p99_ms = 1e3 * quantile(c.gaps_s(), 0.99);
    result.error = c.error();
  } catch (const std::exception& e) {
    result.error = e.what();
  }
  return result;
}

bench_arrivals_result run_bench_arrivals(const bench_arrivals_options& o) {
  bench_arrivals_result result;
  try {
    client c{o.target, o.connections};
    std::vector<float> late_s;
    const auto began = clock::now() + std::chrono::milliseconds{50};
    const auto due = [&](std::uint32_t i) { return began + seconds(i / o.requests_per_s); };
    for (std::uint32_t next = 0; next < o.requests && c.error().empty();) {
      c.run(due(next));
      for (; next < o.requests && due(next) <= clock::now(); ++next) {
        late_s.push_back(std::chrono::duration<float>(clock::now() - due(next)).count());
        c.start(o.rid_prefix + "-" + std::to_string(next), o.prompt_tokens, o.tokens);
      }
      c.flush();
    }
    for (const auto until = clock::now() + seconds(o.wait_s);
         c.ended() < o.requests && clock::now() < until && c.error().empty();)
      c.run(clock::now() + std::chrono::milliseconds{10});
    result.completed = c.completed();
    result.late_p99_ms = 1e3 * quantile(late_s, 0.99);
    result.error = c.error();
  } catch (const std::exception& e) {
    result.error = e.what();
  }
  return result;
}

} // namespace rankwise::app
