#include "app/bench/bench_actors.hpp"

#include "app/bench/bench_measure.hpp"
#include "app/bench/bench_pool.hpp"
#include "core/placement/pool_controller.hpp"
#include "core/request/leg_orders.hpp"

#include <atomic>
#include <chrono>
#include <fstream>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

namespace rankwise::app {

namespace {

core::timestamp now() {
  return std::chrono::time_point_cast<core::duration>(std::chrono::steady_clock::now());
}

double resident_bytes() {
  std::uint64_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages >> pages;
  return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

core::request_ptr make_request(std::uint64_t number, std::uint32_t prompt_tokens, std::int32_t tokens) {
  auto r = std::make_shared<core::generate_request>();
  r->rid = "bench-" + std::to_string(number);
  r->input_ids.assign(prompt_tokens, static_cast<std::int32_t>(number % 50'000));
  r->sampling.max_new_tokens = tokens;
  r->sampling.ignore_eos = true;
  r->received_at = now();
  return r;
}

/// Notes when each stream had its answer.
class answer_sink final : public core::stream_sink {
 public:
  explicit answer_sink(std::uint32_t streams) : answered_at(streams), free_(0) {}

  void deliver(core::stream_batch&& batch) noexcept override {
    const auto at = now();
    for (const auto& e : batch.events) {
      if (e.outcome_index != core::stream_event::no_index)
        failed.fetch_add(1);
      if (e.outcome_index == core::stream_event::no_index && e.finish == core::finish_reason::none)
        continue;
      answered_at[e.stream] = at;
      answered.fetch_add(1);
      free_.release();
    }
  }
  void fail_owner(core::owner_id, core::outcome) noexcept override { failed.fetch_add(1); }

  /// One of the window's places is free.
  void wait_for_place() { free_.acquire(); }
  void open(std::uint32_t places) { free_.release(static_cast<std::ptrdiff_t>(places)); }

  std::vector<core::timestamp> answered_at;
  std::atomic<std::uint32_t> answered{0};
  std::atomic<std::uint32_t> failed{0};

 private:
  std::counting_semaphore<> free_;
};

} // namespace

path_result run_path(const path_options& o) {
  answer_sink sink{o.requests};
  constexpr double step_ms = 0.2;
  const auto way = make_path(o.kind, sink, o.ranks, step_ms);
  if (o.requests_per_s == 0)
    sink.open(o.window);
  std::vector<core::timestamp> submitted_at(o.requests);
  const auto cpu_before = cpu_seconds(::getpid());
  const auto begin = now();
  for (std::uint32_t i = 0; i < o.requests; ++i) {
    if (o.requests_per_s == 0)
      sink.wait_for_place();
    else
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<core::duration>(std::chrono::duration<double>{i / o.requests_per_s}));
    auto request = make_request(i, o.prompt_tokens, 1);
    submitted_at[i] = request->received_at;
    way->submit(i, std::move(request));
  }
  wait_until([&] { return sink.answered.load() >= o.requests; }, "answering every request");
  const auto elapsed = core::to_seconds(now() - begin);
  if (sink.failed.load() != 0)
    throw std::runtime_error("bench: " + std::to_string(sink.failed.load()) + " requests failed");
  path_result r;
  r.requests_per_s = o.requests / elapsed;
  r.cpu_us = (cpu_seconds(::getpid()) - cpu_before) / o.requests * 1e6;
  // The first fifth warms up.
  std::vector<double> answers;
  for (auto i = o.requests / 5; i < o.requests; ++i)
    answers.push_back(core::to_seconds(sink.answered_at[i] - submitted_at[i]) * 1e6);
  auto dispatched = way->take_dispatch_us();
  dispatched.erase(dispatched.begin(), dispatched.begin() + static_cast<std::ptrdiff_t>(dispatched.size() / 5));
  r.answer_p50_us = quantile(answers, 0.5);
  r.answer_p99_us = quantile(answers, 0.99);
  r.dispatch_p50_us = quantile(dispatched, 0.5);
  r.dispatch_p99_us = quantile(dispatched, 0.99);
  r.handlers = way->handlers();
  return r;
}

in_flight_result run_in_flight(int ranks, std::uint32_t requests, std::uint32_t prompt_tokens) {
  answer_sink sink{requests};
  constexpr double step_ms = 3'600'000; // nothing is answered
  const auto way = make_path(path_kind::actors, sink, ranks, step_ms);
  const auto before = resident_bytes();
  for (std::uint32_t i = 0; i < requests; ++i) {
    way->submit(i, make_request(i, prompt_tokens, 1000));
    if ((i + 1) % 1000 == 0 || i + 1 == requests)
      wait_until([&] { return way->requests_in_flight() + sink.failed.load() > i; }, "placing requests");
  }
  if (sink.failed.load() != 0)
    throw std::runtime_error("bench: " + std::to_string(sink.failed.load()) + " of the requests to be held failed");
  in_flight_result r;
  r.requests = requests;
  r.bytes_per_request = (resident_bytes() - before) / requests;
  r.handlers = way->handlers();
  return r;
}

double placement_ns(std::uint16_t ranks, std::uint32_t placements) {
  auto options = wide_pool(ranks);
  options.ranks_max = ranks;
  core::pool_controller controller{options};
  core::request_handle handle = 0;
  const auto begin = now();
  open_measured_ranks(controller, ranks, begin);
  auto order = core::order_of(*make_request(0, 512, 128), {});
  const auto place = [&](core::timestamp at) {
    order.handle = ++handle;
    if (!std::holds_alternative<core::placement>(controller.place(order, at)))
      throw std::runtime_error("bench: a placement was refused");
  };
  for (int i = 0; i < 4 * ranks; ++i) // what is already there
    place(begin);
  const auto start = now();
  for (std::uint32_t i = 0; i < placements; ++i) {
    place(start);
    controller.end(handle, start);
  }
  return core::to_seconds(now() - start) / placements * 1e9;
}

} // namespace rankwise::app
