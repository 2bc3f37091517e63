#include "app/bench_client.hpp"

#include "io/front/sglang_scheduler.grpc.pb.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <memory>
#include <unistd.h>
#include <vector>

namespace rankwise::app {

namespace {

namespace pb = ::sglang::grpc::scheduler;
using clock = std::chrono::steady_clock;

// Streams outlast every window; their clients cancel.
constexpr std::int32_t tokens_asked = 1'000'000;

struct stream_state {
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  grpc::ByteBuffer buffer;
  std::string rid;
  enum class stage : std::uint8_t { start, write, read } now = stage::start;
  std::uint64_t received = 0;
  clock::time_point last{};
};

grpc::ByteBuffer request_for(const stream_state& s) {
  pb::GenerateRequest request;
  request.set_request_id(s.rid);
  request.mutable_tokenized()->add_input_ids(1);
  request.set_stream(true);
  request.set_logprob_start_len(-1);
  auto& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_top_k(-1);
  sampling.set_repetition_penalty(1);
  sampling.set_max_new_tokens(tokens_asked);
  sampling.set_n(1);
  sampling.set_ignore_eos(true);
  sampling.set_skip_special_tokens(true);
  sampling.set_spaces_between_special_tokens(true);
  const grpc::Slice slice{request.SerializeAsString()};
  return {&slice, 1};
}

double quantile_ms(std::vector<float>& values, double q) {
  if (values.empty())
    return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at) * 1e3;
}

class bench_client {
 public:
  explicit bench_client(const bench_client_options& options) : options_(options) {}

  bench_client_result run() {
    open();
    const auto from = clock::now() + seconds(options_.warm_up_s);
    const auto until = from + seconds(options_.seconds);
    clock::time_point began{};
    for (auto now = clock::now(); now < until && result_.error.empty(); now = clock::now()) {
      if (!counting_ && now >= from) {
        counting_ = true;
        began = now;
        result_.cpu_s = options_.cpu();
      }
      void* tag = nullptr;
      bool ok = false;
      if (queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + std::chrono::milliseconds{20}) ==
          grpc::CompletionQueue::GOT_EVENT)
        on_event(*static_cast<stream_state*>(tag), ok);
    }
    result_.cpu_s = options_.cpu() - result_.cpu_s;
    result_.seconds = std::chrono::duration<double>(clock::now() - began).count();
    result_.gap_p50_ms = quantile_ms(gaps_s_, 0.5);
    result_.gap_p99_ms = quantile_ms(gaps_s_, 0.99);
    close();
    return std::move(result_);
  }

 private:
  static clock::duration seconds(double s) {
    return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(s));
  }

  void open() {
    for (std::uint32_t i = 0; i < std::max(options_.channels, 1U); ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1); // or all channels would share one connection
      stubs_.push_back(std::make_unique<grpc::GenericStub>(
          grpc::CreateCustomChannel(options_.target, grpc::InsecureChannelCredentials(), arguments)));
    }
    for (std::uint32_t i = 0; i < options_.streams; ++i) {
      auto& s = *streams_.emplace_back(std::make_unique<stream_state>());
      s.rid = "bench-" + std::to_string(::getpid()) + "-" + std::to_string(i);
      s.call = stubs_[i % stubs_.size()]->PrepareCall(&s.context, "/sglang.grpc.scheduler.SglangScheduler/Generate",
                                                      &queue_);
      s.call->StartCall(&s);
    }
  }

  void on_event(stream_state& s, bool ok) {
    if (!ok) {
      result_.error = s.rid + " ended early";
      return;
    }
    if (s.now == stream_state::stage::start) {
      s.now = stream_state::stage::write;
      s.call->WriteLast(request_for(s), grpc::WriteOptions{}, &s);
      return;
    }
    if (s.now == stream_state::stage::read)
      take(s);
    s.now = stream_state::stage::read;
    s.call->Read(&s.buffer, &s);
  }

  void take(stream_state& s) {
    grpc::Slice slice;
    if ((!s.buffer.TrySingleSlice(&slice).ok() && !s.buffer.DumpToSingleSlice(&slice).ok()) ||
        !message_.ParseFromArray(slice.begin(), static_cast<int>(slice.size())) || !message_.has_chunk()) {
      result_.error = s.rid + " brought no chunk";
      return;
    }
    const auto now = clock::now();
    const auto count = static_cast<std::uint64_t>(message_.chunk().token_ids_size());
    s.received += count;
    if (message_.chunk().completion_tokens() != s.received)
      result_.error = s.rid + " counts " + std::to_string(message_.chunk().completion_tokens()) + " tokens, not " +
                      std::to_string(s.received);
    if (counting_) {
      result_.tokens += count;
      ++result_.chunks;
      if (s.last != clock::time_point{})
        gaps_s_.push_back(std::chrono::duration<float>(now - s.last).count());
    }
    s.last = now;
  }

  void close() {
    for (auto& s : streams_)
      s->context.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  const bench_client_options& options_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<stream_state>> streams_;
  pb::GenerateResponse message_;
  std::vector<float> gaps_s_;
  bool counting_ = false;
  bench_client_result result_;
};

} // namespace

bench_client_result run_bench_client(const bench_client_options& options) {
  return bench_client{options}.run();
}

} // namespace rankwise::app
