#include "app/bench/bench_actors.hpp"

#include "actors/supervisor.hpp"
#include "app/bench/bench_engine.hpp"
#include "app/bench/bench_measure.hpp"
#include "app/bench/bench_pool.hpp"
#include "app/node/actor_config.hpp"
#include "app/node/forwarder_bell.hpp"
#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"
#include "core/doorbell.hpp"
#include "core/pool_controller.hpp"
#include "core/request_table.hpp"
#include "io/zmq/engine_hub.hpp"
#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/request_codec.hpp"

#include <caf/all.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <semaphore>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace rankwise::app {

namespace {

namespace sg = wire::sglang;
using std::chrono::steady_clock;

core::timestamp now() {
  return std::chrono::time_point_cast<core::duration>(steady_clock::now());
}

double resident_bytes() {
  std::uint64_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages >> pages;
  return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void wait_until(const std::function<bool()>& done, const char* what) {
  const auto end = steady_clock::now() + std::chrono::seconds{60};
  while (!done()) {
    if (steady_clock::now() > end)
      throw std::runtime_error(std::string{"bench: "} + what + " took longer than 60 s");
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
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
  void fail_all(core::outcome) noexcept override { failed.fetch_add(1); }

  /// One of the window's places is free.
  void wait_for_place() { free_.acquire(); }
  void open(std::uint32_t places) { free_.release(static_cast<std::ptrdiff_t>(places)); }

  std::vector<core::timestamp> answered_at;
  std::atomic<std::uint32_t> answered{0};
  std::atomic<std::uint32_t> failed{0};

 private:
  std::counting_semaphore<> free_;
};

core::pool_options wide_pool(int ranks) {
  core::pool_options pool;
  pool.ranks_awaited = static_cast<std::uint16_t>(ranks);
  pool.requests_in_flight_max = 1'000'000;
  pool.tokens_in_flight_max = std::uint64_t{1} << 50;
  pool.waiting_requests_max = 0; // the path without actors has no waiting room
  return pool;
}

core::request_table_options wide_table() {
  core::request_table_options table;
  table.pools.unified = 0;
  table.streams_max = 1'000'000;
  return table;
}

/// What both paths have: the engine hub with its load board, and a process with the ranks.
class path {
 public:
  path(answer_sink& sink, int ranks, double step_ms) : sink_(sink), ranks_(ranks), step_ms_(step_ms) {}
  virtual ~path() = default;
  path(const path&) = delete;
  path& operator=(const path&) = delete;

  virtual void submit(core::stream_id stream, core::request_ptr request) = 0;
  [[nodiscard]] virtual actor_handlers handlers() { return {}; }

  std::vector<double> take_dispatch_us() {
    const std::lock_guard guard{dispatch_mutex_};
    return std::move(dispatch_us_);
  }

 protected:
  void start_hub(io::engine_hub_callbacks callbacks) {
    io::engine_hub_options o;
    io::hub_pool_options pool;
    pool.name = "unified";
    pool.data_over_ipc = true;
    o.pools.push_back(pool);
    o.ipc_folder = folder_.path();
    o.send_queue_requests_max = 1'000'000;
    board_ = std::make_shared<core::load_board>(io::engine_hub::board_slots(o));
    callbacks.now = [] { return now(); };
    callbacks.on_dispatched = [this](core::duration d) {
      const std::lock_guard guard{dispatch_mutex_};
      dispatch_us_.push_back(core::to_seconds(d) * 1e6);
    };
    hub_ = std::make_unique<io::engine_hub>(o, std::move(callbacks), board_);
  }
  void start_engine() {
    hub_->start();
    engine_ = std::make_unique<child_process>(own_program(),
                                              bench_engine_arguments(hub_->handshake_endpoint(0), ranks_, step_ms_),
                                              folder_.path() + "/engine.log");
  }
  void stop_engine() {
    engine_->end(std::chrono::seconds{1});
    hub_->stop();
  }

  answer_sink& sink_;
  int ranks_;
  std::shared_ptr<core::load_board> board_;
  std::unique_ptr<io::engine_hub> hub_;

 private:
  double step_ms_;
  scratch_folder folder_{"rankwise-bench-"};
  std::unique_ptr<child_process> engine_;
  std::mutex dispatch_mutex_;
  std::vector<double> dispatch_us_;
};

class actor_path final : public path {
 public:
  actor_path(answer_sink& sink, int ranks, double step_ms)
      : path(sink, ranks, step_ms), system_config_(0), system_(system_config_),
        directory_(std::make_shared<actor_directory>()) {
    io::engine_hub_callbacks callbacks;
    callbacks.on_link_event = [this](link_event e) {
      if (const auto supervisor = directory_->supervisor(); supervisor != nullptr)
        caf::anon_send(supervisor, std::move(e));
    };
    callbacks.on_outputs = [this](core::output_batch batch) {
      const auto manager = directory_->request_manager();
      manager.backlog->batches.fetch_add(1, std::memory_order_relaxed);
      caf::anon_send(manager.handle, std::move(batch));
    };
    callbacks.may_receive = [this] { return directory_->request_manager().backlog->batches.load() < 4096; };
    callbacks.on_load_report = [this] { doorbell_.ring(); };
    start_hub(std::move(callbacks));
    supervisor_config c;
    c.pools.push_back(wide_pool(ranks));
    c.requests = wide_table();
    c.rank_timing.silence.floor = std::chrono::hours{1};
    c.board = board_;
    c.link = hub_.get();
    c.sink = &sink_;
    c.directory = directory_;
    const auto supervisor_handle = system_.spawn(supervisor, std::move(c));
    directory_->set(supervisor_handle);
    wait_until([this] { return directory_->request_manager().handle != nullptr; }, "starting the actors");
    forward_ = std::thread{[this] { wake_forwarder(doorbell_, *directory_, running_); }};
    start_engine();
    wait_until(
        [this] {
          const auto s = snapshot();
          return !s.pools.empty() && s.pools[0].ranks_up == static_cast<std::uint32_t>(ranks_);
        },
        "the ranks' registration");
  }
  ~actor_path() override {
    running_ = false;
    doorbell_.ring();
    forward_.join();
    stop_engine();
    caf::anon_send_exit(directory_->supervisor(), caf::exit_reason::user_shutdown);
    directory_->clear();
    system_.await_all_actors_done();
  }

  void submit(core::stream_id stream, core::request_ptr request) override {
    const auto manager = directory_->request_manager();
    manager.backlog->submissions.fetch_add(1);
    caf::anon_send(manager.handle, submit_request{stream, std::move(request)});
  }

  [[nodiscard]] node_snapshot snapshot() {
    node_snapshot result;
    const auto introspector = directory_->introspector();
    if (introspector == nullptr)
      return result;
    caf::scoped_actor self{system_};
    self->request(introspector, std::chrono::seconds{5}, snapshot_atom::value)
        .receive([&](node_snapshot& s) { result = std::move(s); }, [](const caf::error&) {});
    return result;
  }

  [[nodiscard]] actor_handlers handlers() override {
    actor_handlers total;
    for (const auto& a : snapshot().actors) {
      total.handled += a.handled;
      total.slow += a.slow_handlers;
      total.longest_ms = std::max(total.longest_ms, static_cast<double>(a.longest_handler_ns) / 1e6);
    }
    return total;
  }

 private:
  core::doorbell doorbell_;
  actor_config system_config_;
  caf::actor_system system_;
  std::shared_ptr<actor_directory> directory_;
  std::atomic<bool> running_{true};
  std::thread forward_;
};

/// A thread with a queue: the least that any design pays which hands a request to another thread.
class work_thread {
 public:
  work_thread() = default;
  ~work_thread() {
    {
      const std::lock_guard guard{mutex_};
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  work_thread(const work_thread&) = delete;
  work_thread& operator=(const work_thread&) = delete;

  void run(std::function<void()> work) {
    {
      const std::lock_guard guard{mutex_};
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (std::unique_lock lock{mutex_};;) {
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty())
        return;
      const auto next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::thread thread_{[this] { work(); }};
};

/// The same classes, called under one mutex by the threads that would have sent a message, or by one thread to which
/// those hand over.
class direct_path final : public path {
 public:
  direct_path(answer_sink& sink, int ranks, double step_ms, bool hand_over)
      : path(sink, ranks, step_ms), table_(wide_table()), controller_(wide_pool(ranks)), layouts_(64) {
    if (hand_over)
      worker_.emplace();
    effects_.pools.resize(1);
    io::engine_hub_callbacks callbacks;
    callbacks.on_link_event = [this](link_event e) {
      if (e.kind != link_event_kind::registered)
        return;
      sg::registration r;
      r.positional_layouts = std::move(e.layouts);
      auto layout = sg::request_layout::from_registration(r);
      if (!layout)
        return;
      const std::lock_guard guard{mutex_};
      layouts_[e.rank.rank] = std::move(*layout);
      core::rank_announcement up;
      up.rank = e.rank;
      up.epoch = e.epoch;
      up.kv_capacity = e.kv_capacity;
      up.max_running = e.max_running;
      up.chunk_tokens = e.chunk_tokens;
      up.data_parallel_size = e.data_parallel_size;
      controller_.rank_up(up, now());
    };
    callbacks.on_outputs = [this](core::output_batch batch) {
      run([this, batch = std::move(batch)] { table_.on_outputs(batch, effects_); });
    };
    callbacks.may_receive = [] { return true; };
    callbacks.on_load_report = [this] {
      const std::lock_guard guard{mutex_};
      board_->drain([&](std::size_t, const core::load_report& report) { controller_.report(report); });
    };
    start_hub(std::move(callbacks));
    start_engine();
    wait_until(
        [this] {
          const std::lock_guard guard{mutex_};
          return controller_.ranks_up() == static_cast<std::size_t>(ranks_);
        },
        "the ranks' registration");
  }
  ~direct_path() override {
    stop_engine();
    worker_.reset();
  }

  void submit(core::stream_id stream, core::request_ptr request) override {
    run([this, stream, request = std::move(request)] { table_.submit(stream, request, now(), effects_); });
  }

 private:
  template <class Change>
  void run(Change change) {
    auto locked = [this, change = std::move(change)] {
      const std::lock_guard guard{mutex_};
      change();
      carry_out();
    };
    if (worker_)
      worker_->run(std::move(locked));
    else
      locked();
  }

  void carry_out() {
    for (;;) {
      if (!effects_.out.events.empty())
        sink_.deliver(std::exchange(effects_.out, {}));
      if (effects_.has_progress)
        controller_.progress(effects_.progress, now());
      auto work = std::exchange(effects_.pools[0], {});
      effects_.clear();
      if (work.empty())
        return;
      for (const auto handle : work.releases)
        controller_.release(handle, now());
      for (const auto& end : work.ends)
        controller_.end(end.handle, now());
      table_.on_aborts_done(0, work.aborts_until);
      for (const auto& order : work.places) {
        auto answer = controller_.place(order, now());
        if (auto* refused = std::get_if<core::refusal>(&answer)) {
          table_.on_refusal(*refused, now(), effects_);
          continue;
        }
        const auto& placed = std::get<core::placement>(answer);
        table_.on_placement(placed, now(), effects_);
        const auto rid = sg::make_engine_rid(*order.request, order.sample, order.handle, placed.attempt, 0);
        hub_->send(placed.rank, placed.epoch,
                   {core::frame_kind::add, layouts_[placed.rank.rank]->encode_add(*order.request, rid, {}),
                    order.request->received_at});
      }
    }
  }

  std::mutex mutex_;
  core::request_table table_;
  core::pool_controller controller_;
  std::vector<std::optional<sg::request_layout>> layouts_; // by rank
  core::request_effects effects_;
  std::optional<work_thread> worker_;
};

std::unique_ptr<path> make_path(path_kind kind, answer_sink& sink, int ranks) {
  constexpr double step_ms = 0.2;
  if (kind == path_kind::actors)
    return std::make_unique<actor_path>(sink, ranks, step_ms);
  return std::make_unique<direct_path>(sink, ranks, step_ms, kind == path_kind::one_hand_over);
}

} // namespace

path_result run_path(const path_options& o) {
  answer_sink sink{o.requests};
  const auto way = make_path(o.kind, sink, o.ranks);
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
  actor_path way{sink, ranks, step_ms};
  const auto before = resident_bytes();
  for (std::uint32_t i = 0; i < requests; ++i) {
    way.submit(i, make_request(i, prompt_tokens, 1000));
    if ((i + 1) % 1000 == 0 || i + 1 == requests)
      wait_until([&] { return way.snapshot().requests.in_flight() + sink.failed.load() > i; }, "placing requests");
  }
  if (sink.failed.load() != 0)
    throw std::runtime_error("bench: " + std::to_string(sink.failed.load()) + " of the requests to be held failed");
  in_flight_result r;
  r.requests = requests;
  r.bytes_per_request = (resident_bytes() - before) / requests;
  r.handlers = way.handlers();
  return r;
}

double placement_ns(std::uint16_t ranks, std::uint32_t placements) {
  auto options = wide_pool(ranks);
  options.ranks_max = ranks;
  core::pool_controller controller{options};
  core::request_handle handle = 0;
  const auto begin = now();
  open_measured_ranks(controller, ranks, begin);
  core::place_order order;
  order.request = make_request(0, 512, 128);
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
