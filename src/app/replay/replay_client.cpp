#include "app/replay/replay_client.hpp"

#include "app/replay/grpc_callback_threads.hpp"

#include "io/front/sglang_scheduler.grpc.pb.h"
#include "sim/prompt_ids.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <grpcpp/grpcpp.h>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace rankwise::app {

namespace {

namespace proto = sglang::grpc::scheduler;
using clock = std::chrono::steady_clock;

double seconds_between(clock::time_point from, clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
}

/// When, and which of the workload's requests.
using due_request = std::pair<clock::time_point, std::size_t>;

class replay_stream;

/// What all streams of one replay share.
class replay_run {
 public:
  explicit replay_run(const replay_options& options) : options_(options) {}

  void opened(replay_stream* stream) {
    const std::lock_guard lock(mutex_);
    open_.insert(stream);
  }
  void ended(replay_stream* stream, const stream_outcome& outcome, bool lost, const std::vector<float>& gaps,
             std::optional<double> ttft, std::uint64_t wrong, const std::string& first_wrong);
  void cancel_open(bool as_silent);
  void token_arrived(std::uint64_t count) {
    tokens_.fetch_add(count, std::memory_order_relaxed);
    last_arrival_.store(clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  void sent(double lag_s) {
    const std::lock_guard lock(mutex_);
    ++sent_;
    result_.send_lag.add(lag_s);
  }

  [[nodiscard]] std::size_t open() const {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }
  [[nodiscard]] replay_progress progress() const {
    const std::lock_guard lock(mutex_);
    replay_progress p;
    p.sent = sent_;
    p.open = open_.size();
    p.completed = result_.completed;
    p.ended_otherwise = result_.failed + result_.cancelled + result_.refused + result_.lost;
    p.tokens = tokens_.load(std::memory_order_relaxed);
    return p;
  }
  /// Numbers and times of the requests that ended since the last call.
  [[nodiscard]] std::vector<std::pair<std::size_t, clock::time_point>> take_ended() {
    const std::lock_guard lock(mutex_);
    return std::exchange(ended_, {});
  }
  /// Until some stream has ended since the last call or `until` passes.
  void wait(clock::time_point until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return ends_ != ends_waited_for_; });
    ends_waited_for_ = ends_;
  }
  [[nodiscard]] clock::time_point last_arrival() const {
    return clock::time_point(clock::duration(last_arrival_.load(std::memory_order_relaxed)));
  }
  [[nodiscard]] replay_result take_result() {
    const std::lock_guard lock(mutex_);
    result_.tokens_delivered = tokens_.load(std::memory_order_relaxed);
    return std::move(result_);
  }
  [[nodiscard]] const replay_options& options() const noexcept { return options_; }

 private:
  const replay_options& options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_set<replay_stream*> open_;
  std::uint64_t sent_ = 0;
  std::uint64_t ends_ = 0;
  std::uint64_t ends_waited_for_ = 0;
  std::vector<std::pair<std::size_t, clock::time_point>> ended_;
  std::atomic<std::uint64_t> tokens_{0};
  std::atomic<clock::rep> last_arrival_{clock::now().time_since_epoch().count()};
  replay_result result_;
};

/// One request; lives from its start to its OnDone.
class replay_stream final : public grpc::ClientReadReactor<proto::GenerateResponse> {
 public:
  replay_stream(replay_run& run, std::size_t number, std::string rid, std::uint32_t tokens_asked, clock::time_point due)
      : run_(run), number_(number), rid_(std::move(rid)), crc_(wire::sglang::rid_crc32(rid_)),
        tokens_asked_(tokens_asked), due_(due), last_chunk_(due) {}

  void start(proto::SglangScheduler::Stub& stub, proto::GenerateRequest&& request) {
    request_ = std::move(request);
    if (run_.options().deadline_s > 0) {
      context_.set_deadline(std::chrono::system_clock::now() +
                            std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                std::chrono::duration<double>(run_.options().deadline_s)));
    }
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return; // OnDone follows
    }
    if (response_.request_id() != rid_) {
      wrong("request_id \"" + response_.request_id() + "\"");
    }
    if (response_.has_chunk()) {
      on_chunk(response_.chunk());
    } else if (response_.has_complete()) {
      on_complete(response_.complete());
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    stream_outcome outcome;
    bool lost = false;
    if (!status.ok()) {
      outcome = classify(static_cast<int>(status.error_code()), status.error_message());
      lost = cancelled_as_silent_.load() && status.error_code() == grpc::StatusCode::CANCELLED;
      if (status.error_code() == grpc::StatusCode::CANCELLED && outcome.kind == core::outcome_kind::failed) {
        outcome = {core::outcome_kind::cancelled, std::string(core::to_string(core::failure::client_cancelled))};
      } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) { // our own clock may have been first
        outcome = {core::outcome_kind::cancelled, std::string(core::to_string(core::failure::deadline_exceeded))};
      }
    } else if (!complete_) {
      lost = true;
    } else if (finish_ == "abort") {
      outcome = {core::outcome_kind::failed, std::string(core::to_string(core::failure::engine_aborted))};
    } else if (run_.options().check_tokens && received_ != tokens_asked_) {
      wrong("has " + std::to_string(received_) + " tokens instead of " + std::to_string(tokens_asked_));
    }
    run_.ended(this, outcome, lost, gaps_, ttft_, wrong_, first_wrong_);
    delete this;
  }

  void mark_silent() { cancelled_as_silent_ = true; }
  [[nodiscard]] std::size_t number() const noexcept { return number_; }

 private:
  void take_token(std::uint32_t token) {
    if (run_.options().check_tokens) {
      const auto expected = wire::sglang::expected_token(crc_, received_);
      if (static_cast<std::int64_t>(token) != expected) {
        wrong("token " + std::to_string(received_) + " is " + std::to_string(token) + " instead of " +
              std::to_string(expected));
      }
    }
    ++received_;
  }

  void on_tokens(std::uint64_t count) {
    const auto now = clock::now();
    if (ttft_) {
      gaps_.push_back(static_cast<float>(seconds_between(last_chunk_, now)));
    } else {
      ttft_ = seconds_between(due_, now);
    }
    last_chunk_ = now;
    run_.token_arrived(count);
  }

  void on_chunk(const proto::GenerateStreamChunk& chunk) {
    if (complete_) {
      wrong("a chunk after the completion");
    }
    for (const std::uint32_t token : chunk.token_ids()) {
      take_token(token);
    }
    if (chunk.completion_tokens() != received_) {
      wrong("completion_tokens " + std::to_string(chunk.completion_tokens()) + " after " + std::to_string(received_));
    }
    if (chunk.token_ids_size() > 0) {
      on_tokens(static_cast<std::uint64_t>(chunk.token_ids_size()));
    }
  }

  void on_complete(const proto::GenerateComplete& complete) {
    if (complete_) {
      wrong("a second completion");
      return;
    }
    complete_ = true;
    finish_ = complete.finish_reason();
    const auto all = static_cast<std::uint64_t>(complete.output_ids_size());
    const std::uint64_t before = received_;
    if (all < before) {
      wrong("the completion has " + std::to_string(all) + " ids after " + std::to_string(before) + " in chunks");
    }
    if (run_.options().check_tokens) {
      for (std::uint64_t i = 0; i < std::min(all, before); ++i) {
        if (static_cast<std::int32_t>(complete.output_ids(static_cast<int>(i))) !=
            wire::sglang::expected_token(crc_, i)) {
          wrong("id " + std::to_string(i) + " of the completion");
        }
      }
    }
    for (std::uint64_t i = before; i < all; ++i) { // ids that came in no chunk
      take_token(complete.output_ids(static_cast<int>(i)));
    }
    if (complete.completion_tokens() != received_) {
      wrong("the completion counts " + std::to_string(complete.completion_tokens()) + " tokens, not " +
            std::to_string(received_));
    }
    if (all > before) {
      on_tokens(all - before);
    }
  }

  void wrong(const std::string& what) {
    if (++wrong_ == 1) {
      first_wrong_ = rid_ + ": " + what;
    }
  }

  replay_run& run_;
  std::size_t number_; ///< in the workload
  std::string rid_;
  std::uint32_t crc_;
  std::uint32_t tokens_asked_;
  clock::time_point due_;
  clock::time_point last_chunk_;
  grpc::ClientContext context_;
  proto::GenerateRequest request_;
  proto::GenerateResponse response_;
  std::uint64_t received_ = 0;
  std::optional<double> ttft_;
  std::vector<float> gaps_;
  bool complete_ = false;
  std::string finish_;
  std::uint64_t wrong_ = 0;
  std::string first_wrong_;
  std::atomic<bool> cancelled_as_silent_{false};
};

void replay_run::ended(replay_stream* stream, const stream_outcome& outcome, bool lost, const std::vector<float>& gaps,
                       std::optional<double> ttft, std::uint64_t wrong, const std::string& first_wrong) {
  const std::lock_guard lock(mutex_);
  open_.erase(stream);
  ended_.emplace_back(stream->number(), clock::now());
  if (lost) {
    ++result_.lost;
  } else {
    switch (outcome.kind) {
    case core::outcome_kind::completed:
      ++result_.completed;
      break;
    case core::outcome_kind::failed:
      ++result_.failed;
      break;
    case core::outcome_kind::cancelled:
      ++result_.cancelled;
      break;
    case core::outcome_kind::refused:
      ++result_.refused;
      break;
    }
    if (!outcome.reason.empty()) {
      ++result_.failures[outcome.reason];
    }
  }
  result_.inter_token.add(gaps);
  if (ttft) {
    result_.ttft.add(*ttft);
  }
  if (wrong > 0 && result_.tokens_wrong == 0) {
    result_.first_wrong = first_wrong;
  }
  result_.tokens_wrong += wrong;
  ++ends_;
  changed_.notify_all();
}

proto::GenerateRequest make_request(const sim::workload& workload, std::size_t number, const std::string& rid,
                                    const replay_options& options) {
  const sim::workload_request& asked = workload.requests[number];
  proto::GenerateRequest request;
  request.set_request_id(rid);
  request.set_stream(true);
  request.set_logprob_start_len(-1);
  const auto ids = sim::prompt_ids(asked, workload.block_tokens, options.seed, number);
  request.mutable_tokenized()->mutable_input_ids()->Add(ids.begin(), ids.end());
  auto& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_top_k(-1);
  sampling.set_repetition_penalty(1);
  sampling.set_max_new_tokens(asked.output_tokens);
  sampling.set_n(1);
  sampling.set_ignore_eos(true);
  sampling.set_skip_special_tokens(true);
  sampling.set_spaces_between_special_tokens(true);
  if (options.data_parallel_rank) {
    request.set_data_parallel_rank(*options.data_parallel_rank);
  }
  return request;
}

std::vector<std::unique_ptr<proto::SglangScheduler::Stub>> connect(const replay_options& options) {
  std::vector<std::unique_ptr<proto::SglangScheduler::Stub>> stubs;
  for (std::uint32_t i = 0; i < std::max(options.channels, 1U); ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1); // or all channels would share one connection
    arguments.SetMaxReceiveMessageSize(-1);
    stubs.push_back(proto::SglangScheduler::NewStub(
        grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

} // namespace

void replay_run::cancel_open(bool as_silent) {
  const std::lock_guard lock(mutex_);
  for (replay_stream* stream : open_) {
    if (as_silent) {
      stream->mark_silent();
    }
    stream->cancel();
  }
}

replay_result replay(const sim::workload& workload, const replay_options& options, const replay_watcher& watch,
                     double watch_every_s) {
  keep_grpc_callback_threads();
  replay_run run(options);
  const auto stubs = connect(options);
  const auto start = clock::now();
  const auto at = [&](double seconds) { return start + duration_of(seconds); };
  double next_watch_s = 0;
  const auto report = [&] {
    if (watch && clock::now() >= at(next_watch_s)) {
      next_watch_s = seconds_between(start, clock::now()) + watch_every_s;
      auto progress = run.progress();
      progress.elapsed_s = seconds_between(start, clock::now());
      progress.total = workload.requests.size();
      watch(progress);
    }
  };
  const auto stopped = [&] { return options.stop != nullptr && options.stop->load(); };
  constexpr double look_around_s = 0.05; // how late a stop or a report may be

  const sim::request_followers followers(workload);
  // Those whose time is known, by it and then by number.
  std::priority_queue<due_request, std::vector<due_request>, std::greater<>> due;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    if (!workload.requests[i].after) {
      due.emplace(at(workload.requests[i].arrival_s), i);
    }
  }
  const auto let_followers_come = [&] {
    for (const auto& [number, ended_at] : run.take_ended()) {
      for (const auto follower : followers.of(number)) {
        due.emplace(ended_at + duration_of(workload.requests[follower].think_s), follower);
      }
    }
  };
  std::size_t sent = 0;
  bool gave_up = false;
  auto last_sent = clock::now();
  while (sent < workload.requests.size() && !stopped()) {
    let_followers_come();
    report();
    const auto soon = clock::now() + duration_of(look_around_s);
    if (due.empty()) { // all that is left follows what is open
      if (!gave_up && seconds_between(std::max(last_sent, run.last_arrival()), clock::now()) > options.silence_s) {
        gave_up = true;
        run.cancel_open(true);
      }
      run.wait(soon);
      continue;
    }
    const auto [when, number] = due.top();
    if (clock::now() < when || run.open() >= options.streams_max) {
      if (run.open() >= options.streams_max || followers.count() > 0) {
        run.wait(std::min(std::max(when, clock::now()), soon));
      } else {
        std::this_thread::sleep_until(std::min(when, soon));
      }
      continue;
    }
    due.pop();
    std::string rid = options.rid_prefix + "-" + std::to_string(number);
    auto request = make_request(workload, number, rid, options);
    auto* const stream =
        new replay_stream(run, number, std::move(rid), workload.requests[number].output_tokens, when); // deletes itself
    run.opened(stream);
    last_sent = clock::now();
    gave_up = false;
    run.sent(seconds_between(when, last_sent));
    stream->start(*stubs[number % stubs.size()], std::move(request));
    ++sent;
  }
  gave_up = false;
  while (run.open() > 0) {
    const auto quiet_since = std::max(last_sent, run.last_arrival());
    if (!gave_up && (stopped() || seconds_between(quiet_since, clock::now()) > options.silence_s)) {
      gave_up = true;
      run.cancel_open(!stopped());
    }
    report();
    run.wait(clock::now() + duration_of(look_around_s));
  }
  next_watch_s = 0;
  report();
  auto result = run.take_result();
  result.elapsed_s = seconds_between(start, clock::now());
  result.not_sent = workload.requests.size() - sent;
  return result;
}

} // namespace rankwise::app
