#include "app/bench/bench_path.hpp"

#include "actors/supervisor.hpp"
#include "app/bench/bench_engine.hpp"
#include "app/node/actor_config.hpp"
#include "app/node/forwarder_bell.hpp"
#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"
#include "core/load/doorbell.hpp"
#include "core/request/request_table.hpp"
#include "io/zmq/engine_hub.hpp"
#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/request_codec.hpp"

#include <caf/all.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace rankwise::app {

namespace {

namespace sg = wire::sglang;

core::timestamp now() {
  return std::chrono::time_point_cast<core::duration>(std::chrono::steady_clock::now());
}

core::request_table_options wide_table() {
  core::request_table_options table;
  table.pools.unified = 0;
  table.streams_max = 1'000'000;
  return table;
}

/// What all paths have: the engine hub with its load board, and a process with the ranks.
class hub_path : public bench_path {
 public:
  hub_path(core::stream_sink& sink, int ranks, double step_ms) : sink_(sink), ranks_(ranks), step_ms_(step_ms) {}

  [[nodiscard]] std::vector<double> take_dispatch_us() override {
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

  core::stream_sink& sink_;
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

class actor_path final : public hub_path {
 public:
  actor_path(core::stream_sink& sink, int ranks, double step_ms)
      : hub_path(sink, ranks, step_ms), system_config_(0), system_(system_config_),
        directory_(std::make_shared<actor_directory>()) {
    io::engine_hub_callbacks callbacks;
    callbacks.on_link_event = [this](link_event e) {
      if (const auto supervisor = directory_->supervisor(); supervisor != nullptr)
        caf::anon_send(supervisor, std::move(e));
    };
    callbacks.on_outputs = [this](core::output_batch batch) {
      const auto manager = directory_->manager_of(batch.owner);
      manager.backlog->batches.fetch_add(1, std::memory_order_relaxed);
      caf::anon_send(manager.handle, std::move(batch));
    };
    callbacks.may_receive = [this] { return !directory_->has_backlog_of(4096); };
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
    wait_until([this] { return directory_->manager_for(0).handle != nullptr; }, "starting the actors");
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
    const auto manager = directory_->manager_for(std::hash<std::string>{}(request->rid));
    manager.backlog->submissions.fetch_add(1);
    caf::anon_send(manager.handle, submit_request{stream, std::move(request)});
  }

  [[nodiscard]] std::uint64_t requests_in_flight() override { return snapshot().requests.in_flight(); }

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
class direct_path final : public hub_path {
 public:
  direct_path(core::stream_sink& sink, int ranks, double step_ms, bool hand_over)
      : hub_path(sink, ranks, step_ms), table_(wide_table()), controller_(wide_pool(ranks)), layouts_(64) {
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
      static_cast<void>(table_.on_rank_up(up.rank, up.epoch, now(), effects_));
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

  [[nodiscard]] std::uint64_t requests_in_flight() override {
    const std::lock_guard guard{mutex_};
    return table_.counts().in_flight();
  }
  [[nodiscard]] actor_handlers handlers() override { return {}; }

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
      for (const auto& d : effects_.dispatches)
        send(d);
      effects_.clear();
      if (work.empty())
        return;
      for (const auto handle : work.releases)
        controller_.release(handle, now());
      for (const auto& end : work.ends)
        controller_.end(end, now());
      for (const auto& order : work.places) {
        auto answer = controller_.place(order, now());
        if (auto* refused = std::get_if<core::refusal>(&answer))
          table_.on_refusal(*refused, now(), effects_);
        else
          table_.on_placement(std::get<core::placement>(answer), now(), effects_);
      }
    }
  }

  void send(const core::leg_dispatch& d) {
    const auto rid = sg::make_engine_rid(*d.request, d.sample, d.leg.handle, d.leg.attempt, 0);
    hub_->send(d.rank, d.epoch,
               {core::frame_kind::add, layouts_[d.rank.rank]->encode_add(*d.request, rid, {}), d.request->received_at});
  }

  std::mutex mutex_;
  core::request_table table_;
  core::pool_controller controller_;
  std::vector<std::optional<sg::request_layout>> layouts_; // by rank
  core::request_effects effects_;
  std::optional<work_thread> worker_;
};

} // namespace

std::unique_ptr<bench_path> make_path(path_kind kind, core::stream_sink& sink, int ranks, double step_ms) {
  if (kind == path_kind::actors)
    return std::make_unique<actor_path>(sink, ranks, step_ms);
  return std::make_unique<direct_path>(sink, ranks, step_ms, kind == path_kind::one_hand_over);
}

core::pool_options wide_pool(int ranks) {
  core::pool_options pool;
  pool.ranks_awaited = static_cast<std::uint16_t>(ranks);
  pool.requests_in_flight_max = 1'000'000;
  pool.tokens_in_flight_max = std::uint64_t{1} << 50;
  pool.waiting_requests_max = 0;
  return pool;
}

void wait_until(const std::function<bool()>& done, const char* what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (!done()) {
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error(std::string{"bench: "} + what + " took longer than 60 s");
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

} // namespace rankwise::app
