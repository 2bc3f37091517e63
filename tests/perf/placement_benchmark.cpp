#include "app/bench/bench_pool.hpp"
#include "core/placement/pool_controller.hpp"

#include <benchmark/benchmark.h>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

/// What one decision costs: views of all ranks, choice, charge and record, by pool_controller as the node uses it; and
/// how often it allocates. A second benchmark ends the request too, with what its engine's batches tell the policy.
namespace {

thread_local std::uint64_t allocations = 0;

} // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes))
    return p;
  throw std::bad_alloc{};
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace {

using namespace rankwise::core;

class pool {
 public:
  pool(std::uint16_t ranks, const std::string& policy) {
    pool_options o;
    o.ranks_max = o.ranks_awaited = ranks;
    o.policy = policy;
    o.requests_in_flight_max = 1 << 20;
    o.tokens_in_flight_max = std::uint64_t{1} << 50;
    controller_ = std::make_unique<pool_controller>(o);
    rankwise::app::open_measured_ranks(*controller_, ranks, now_);
    for (int i = 0; i < 4 * ranks; ++i)
      static_cast<void>(place());
  }

  request_handle place() {
    now_ += std::chrono::microseconds{20};
    leg_request leg;
    leg.rid = "chatcmpl-4f1a9c0e-77aa-4c0b-9d53-3f4d8f0a6f2e";
    leg.wanted.handle = ++handle_;
    leg.wanted.now = now_;
    leg.wanted.prompt_tokens = 100 + handle_ * 7919 % 4000;
    leg.wanted.max_new_tokens = 512;
    leg.wanted.may_wait = false;
    const auto answer = controller_->place(leg);
    const auto* placed = std::get_if<placement>(&answer);
    if (placed == nullptr)
      throw std::runtime_error("a placement was refused");
    rank_ = placed->rank;
    return handle_;
  }
  void end(request_handle handle) {
    batch_progress p;
    p.rank = rank_;
    p.epoch = 1;
    p.first_tokens = {handle};
    p.first_cached = {0};
    controller_->progress(p, now_);
    p.first_tokens.clear();
    p.ended = {handle};
    p.ended_tokens = {200};
    controller_->progress(p, now_);
  }

 private:
  std::unique_ptr<pool_controller> controller_;
  request_handle handle_ = 0;
  rank_id rank_;
  timestamp now_{std::chrono::seconds{1}};
};

void decision(benchmark::State& state, const std::string& policy) {
  pool p{static_cast<std::uint16_t>(state.range(0)), policy};
  for (int i = 0; i < 2000; ++i) // records and tables have their size
    p.end(p.place());
  std::uint64_t in_decisions = 0;
  for (auto _ : state) {
    const auto before = allocations;
    const auto handle = p.place();
    in_decisions += allocations - before;
    state.PauseTiming();
    p.end(handle);
    state.ResumeTiming();
  }
  state.counters["allocations"] = static_cast<double>(in_decisions) / static_cast<double>(state.iterations());
}

void whole_request(benchmark::State& state, const std::string& policy) {
  pool p{static_cast<std::uint16_t>(state.range(0)), policy};
  for (auto _ : state)
    p.end(p.place());
}

void sizes(benchmark::internal::Benchmark* b) {
  b->Arg(8)->Arg(64)->Arg(512)->Arg(1024);
}

} // namespace

// PauseTiming costs about 0.2 us itself: `decision` is an upper bound; whole_request has no such error.
BENCHMARK_CAPTURE(decision, headroom, std::string{"headroom"})->Apply(sizes);
BENCHMARK_CAPTURE(whole_request, headroom, std::string{"headroom"})->Apply(sizes);
BENCHMARK_CAPTURE(whole_request, round_robin, std::string{"round_robin"})->Apply(sizes);
BENCHMARK_CAPTURE(whole_request, total_tokens, std::string{"total_tokens"})->Apply(sizes);

BENCHMARK_MAIN();
