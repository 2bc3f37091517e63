#include "app/node/node.hpp"

#include "actors/supervisor.hpp"
#include "app/node/actor_config.hpp"
#include "app/node/actor_intake.hpp"
#include "app/node/forwarder_bell.hpp"
#include "app/node/history_file.hpp"
#include "app/node/node_views.hpp"
#include "app/node/operator_routes.hpp"
#include "app/node/page/page.hpp"
#include "app/node/state_file.hpp"
#include "app/process/scratch_folder.hpp"
#include "core/load/doorbell.hpp"
#include "io/front/model_naming.hpp"
#include "io/http/admin_server.hpp"
#include "io/zmq/engine_hub.hpp"
#include "messages/type_ids.hpp"
#include "record/decision_file.hpp"
#include "record/request_stream.hpp"

#include <caf/all.hpp>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

namespace rankwise::app {

namespace {

namespace fs = std::filesystem;

class steady_clock final : public core::clock {
 public:
  [[nodiscard]] core::timestamp now() const noexcept override {
    return std::chrono::time_point_cast<core::duration>(std::chrono::steady_clock::now());
  }
};

/// Where a node keeps its sockets: the folder that was asked for, or one of its own that goes with it.
class state_folder {
 public:
  explicit state_folder(const std::string& wanted) : wanted_(wanted) {
    if (wanted.empty()) {
      own_.emplace("rankwise-");
      return;
    }
    std::error_code error;
    const bool made = fs::create_directories(wanted, error);
    if (error)
      throw std::runtime_error("state_dir: cannot make " + wanted + ": " + error.message());
    if (made)
      fs::permissions(wanted, fs::perms::owner_all, error);
    else if (const auto mode = fs::status(wanted, error).permissions();
             !error && (mode & (fs::perms::group_write | fs::perms::others_write)) != fs::perms::none)
      throw std::runtime_error("state_dir: others may write to " + wanted +
                               ", and whoever can is a rank; chmod 700 it");
  }
  [[nodiscard]] const std::string& path() const noexcept { return own_ ? own_->path() : wanted_; }

 private:
  std::string wanted_;
  std::optional<scratch_folder> own_;
};

/// "rank 2 is down, rank 3 has not registered": of the awaited ranks, by the numbers that those who are here name.
std::string missing_ranks(const pool_view& view, const std::map<core::rank_id, std::string>& refused) {
  constexpr std::size_t names_max = 8;
  std::vector<std::string> missing;
  for (std::uint32_t rank = 0; rank < std::max(view.dp_size, view.ranks_awaited); ++rank) {
    const auto found =
        std::find_if(view.ranks.begin(), view.ranks.end(), [&](const auto& row) { return row.rank.rank == rank; });
    const auto why = refused.find({view.pool, static_cast<std::uint16_t>(rank)});
    if (found == view.ranks.end() && why != refused.end())
      missing.push_back(fmt::format("rank {} was refused ({})", rank, why->second));
    else if (found == view.ranks.end())
      missing.push_back(fmt::format("rank {} has not registered", rank));
    else if (found->state != core::rank_state::ready)
      missing.push_back(fmt::format("rank {} is {}", rank, core::to_string(found->state)));
  }
  const auto more = missing.size() > names_max ? missing.size() - names_max : 0;
  missing.resize(missing.size() - more);
  return fmt::format("{}{}", fmt::join(missing, ", "), more > 0 ? fmt::format(", {} more", more) : "");
}

/// Of the pool whose prompts are recorded: the one that computes them.
std::uint32_t block_tokens_of(const std::vector<pool_config>& pools) {
  for (const auto& pool : pools)
    if (pool.options.role != core::pool_role::decode)
      return pool.options.prefix_block_tokens;
  return 0;
}

} // namespace

class node::impl {
 public:
  explicit impl(node_config config)
      : config_(std::move(config)), state_dir_(config_.state_dir), system_config_(config_.worker_threads),
        system_(system_config_), directory_(std::make_shared<actor_directory>()) {
    spdlog::set_level(spdlog::level::from_str(config_.log_level));
    if (!config_.state_dir.empty())
      state_.emplace(state_dir_.path());
    if (!config_.history_file.empty())
      history_ = std::make_unique<history_file>(config_.history_file);
    if (!config_.decision_log.empty())
      decisions_ = std::make_unique<record::decision_file>(
          config_.decision_log, record::decision_file::limits{record::decision_file::limits{}.queued_bytes_max,
                                                              std::uint64_t{config_.decision_log_mb_max} << 20});
    for (const auto& pool : config_.pools) {
      auto& recorders = recorders_.emplace_back();
      if (decisions_)
        recorders.push_back(&decision_writers_.emplace_back(*decisions_, pool.options.index));
      // A pool alone tells both the arrival and the end, whatever its role.
      const auto role = config_.pools.size() == 1 ? core::pool_role::unified : pool.options.role;
      recorders.push_back(&stream_recorders_.emplace_back(request_stream_, role));
    }

    io::engine_hub_options hub;
    for (const auto& pool : config_.pools)
      hub.pools.push_back({pool.options.name, pool.handshake, pool.options.ranks_max,
                           pool.handshake.starts_with("ipc://") || pool.handshake.starts_with("tcp://127.") ||
                               pool.handshake.starts_with("tcp://localhost"),
                           pool.advertise});
    hub.heartbeat_interval_ms = static_cast<int>(config_.heartbeat_interval_ms);
    hub.heartbeat_timeout_ms = static_cast<int>(config_.heartbeat_timeout_ms);
    hub.send_queue_requests_max = config_.send_queue_requests_max;
    hub.send_queue_bytes_max = config_.send_queue_bytes_max;
    hub.ipc_folder = state_dir_.path();
    hub.allowed_peers = config_.allowed_peers;
    hub.boot = state_ ? state_->found().boot : 0;
    board_ = std::make_shared<core::load_board>(io::engine_hub::board_slots(hub));
    const auto batches_max = config_.backlog_batches_max;
    io::engine_hub_callbacks callbacks;
    callbacks.on_link_event = [this](link_event e) {
      note_refusal(e);
      note_registration(e);
      if (const auto supervisor = directory_->supervisor(); supervisor != nullptr)
        caf::anon_send(supervisor, std::move(e));
    };
    callbacks.on_outputs = [this](core::output_batch batch) {
      const auto manager = directory_->manager_of(batch.owner);
      if (manager.handle == nullptr)
        return;
      manager.backlog->batches.fetch_add(1, std::memory_order_relaxed);
      caf::anon_send(manager.handle, std::move(batch));
    };
    callbacks.may_receive = [this, batches_max] { return !directory_->has_backlog_of(batches_max); };
    callbacks.on_load_report = [this] { doorbell_.ring(); };
    callbacks.now = [this] { return clock_.now(); };
    callbacks.on_dispatched = [this](core::duration d) { dispatch_seconds_.Observe(core::to_seconds(d)); };
    callbacks.on_records = [this](std::vector<io::rank_record> records) {
      if (state_)
        state_->set_ranks(std::move(records));
    };
    hub_ = std::make_unique<io::engine_hub>(std::move(hub), std::move(callbacks), board_);

    intake_ = std::make_unique<actor_intake>(
        directory_, config_.backlog_submissions_max, [this] { return info(); }, [this] { return loads(); });
    auto front_options = config_.front;
    front_options.server.listen = config_.grpc;
    front_options.loads_pool = serving_pool();
    front_options.load_balance_method = config_.pools[serving_pool()].options.policy;
    front_ = std::make_unique<io::front::scheduler_front>(front_options, *intake_, clock_);
    intake_->sink(front_.get());

    read_admin_token();
    admin_ = std::make_unique<io::admin_server>(config_.admin);
    add_routes();
    spawn_supervisor();
    restore_ranks();
    hub_->start();
    running_ = true;
    forward_thread_ = std::thread{[this] { wake_forwarder(doorbell_, *directory_, running_); }};
    watch_thread_ = std::thread{[this] { watch(); }};
    if (auto started = front_->start(); !started) {
      stop();
      throw std::runtime_error(started.error());
    }
    admin_->start();
  }

  ~impl() { stop(); }

  bool drain(std::chrono::milliseconds timeout) {
    draining_ = true;
    const bool clean = front_->drain(timeout);
    for (const auto& manager : directory_->managers())
      if (manager.handle != nullptr)
        caf::anon_send(manager.handle, end_all_atom::value);
    return clean;
  }

  void hurry() noexcept { front_->hurry(); }

  void stop() noexcept {
    if (stopped_.exchange(true))
      return;
    running_ = false;
    wake_.notify_all();
    doorbell_.ring();
    admin_->stop();
    front_->stop();
    if (forward_thread_.joinable())
      forward_thread_.join();
    if (watch_thread_.joinable())
      watch_thread_.join();
    hub_->stop();
    if (auto supervisor = directory_->supervisor(); supervisor != nullptr)
      caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
    directory_->clear();
    system_.await_all_actors_done();
  }

  [[nodiscard]] std::string grpc_address() const {
    const auto colon = config_.grpc.rfind(':');
    return config_.grpc.substr(0, colon) + ":" + std::to_string(front_->port());
  }
  [[nodiscard]] std::string admin_address() const { return admin_->address(); }
  [[nodiscard]] std::string handshake_endpoint(std::size_t pool) const { return hub_->handshake_endpoint(pool); }
  [[nodiscard]] const node_config& config() const { return config_; }
  [[nodiscard]] bool ready() const { return info().ready; }
  [[nodiscard]] std::string not_ready_reason() const { return info().not_ready_reason; }
  [[nodiscard]] std::string fatal_reason() const {
    const std::lock_guard guard{mutex_};
    return fatal_;
  }

 private:
  /// The pool whose ranks a client sees: the one that decodes.
  [[nodiscard]] std::uint16_t serving_pool() const {
    std::uint16_t best = 0;
    for (const auto& pool : config_.pools)
      if (pool.options.role != core::pool_role::prefill)
        best = pool.options.index;
    return best;
  }

  void read_admin_token() {
    if (config_.admin_token_file.empty())
      return;
    auto token = app::read_admin_token(config_.admin_token_file);
    if (!token)
      throw std::runtime_error("admin_token_file: " + config_.admin_token_file + " " + token.error());
    admin_token_ = std::move(*token);
  }

  /// Ranks that an earlier process served: they come back when they reconnect, without a handshake.
  void restore_ranks() {
    if (!state_)
      return;
    if (!state_->damage().empty()) {
      spdlog::error("event=state_lost cause={:?} consequence=\"ranks must dial in again\"", state_->damage());
      events_.add(clock_.now(), "node", "state file", "lost", state_->damage() + "; ranks must dial in again");
      return;
    }
    const auto& ranks = state_->found().ranks;
    if (state_->is_first_start()) {
      spdlog::info("event=state_new consequence=\"ranks must dial in\"");
      events_.add(clock_.now(), "node", "state file", "none was there",
                  "the first start, or it was lost: ranks must dial in");
    }
    for (const auto& why : hub_->restore(ranks)) {
      spdlog::error("event=rank_not_restored cause={:?} consequence=\"it must dial in again\"", why);
      events_.add(clock_.now(), "node", "state file", "rank not restored", why + "; it must dial in again");
    }
    if (!ranks.empty())
      spdlog::info("event=ranks_restored ranks={} boot={}", ranks.size(), state_->found().boot);
  }

  void spawn_supervisor() {
    supervisor_config c;
    c.boot = state_ ? state_->found().boot : 0;
    c.managers = config_.managers;
    c.events = &events_;
    c.loads = &load_history_;
    c.on_decision = [this](core::duration d) { decision_seconds_.Observe(core::to_seconds(d)); };
    if (state_) {
      for (const auto& pool : config_.pools)
        for (const auto& [name, rank] : state_->found().drained)
          if (name == pool.options.name)
            c.drained.push_back({pool.options.index, rank});
      c.on_drain_wish = [this](core::rank_id rank, bool drained) {
        state_->set_drained(config_.pools[rank.pool].options.name, rank.rank, drained);
      };
    }
    for (const auto& pool : config_.pools) {
      c.pools.push_back(pool.options);
      c.pools.back().ledger = config_.ledger;
      auto& pools = c.requests.pools;
      (pool.options.role == core::pool_role::unified   ? pools.unified
       : pool.options.role == core::pool_role::prefill ? pools.prefill
                                                       : pools.decode) = pool.options.index;
    }
    c.requests.attempts_max = config_.attempts_max;
    c.requests.request_time_max = core::from_seconds(config_.request_time_max_s);
    c.requests.streams_max = config_.streams_max;
    c.rank_timing = config_.rank_timing;
    c.restarts = config_.restarts;
    c.forwarder_restarts = config_.restarts;
    c.forwarder_restarts.restarts_max = config_.forwarder_restarts_max;
    if (config_.forwarder_restarts_max == 0)
      c.forwarder_restarts.backoff_max = c.forwarder_restarts.backoff_min;
    c.park_retry = core::from_seconds(config_.park_retry_s);
    c.board = board_;
    c.link = hub_.get();
    c.sink = front_.get();
    c.history = history_.get();
    c.recorders = recorders_;
    c.directory = directory_;
    c.load_forwarding = config_.load_forwarding;
    c.seed = std::random_device{}();
    c.on_fatal = [this](std::string reason) { give_up(std::move(reason)); };
    const auto handle = system_.spawn(supervisor, std::move(c));
    directory_->set(handle); // before it runs: ranks are restored next
    handle->attach_functor([this](const caf::error& reason) {
      if (reason != caf::exit_reason::user_shutdown)
        give_up("the supervisor crashed: " + system_.render(reason));
    });
  }

  /// The process is to end; the first reason counts.
  void give_up(std::string reason) {
    spdlog::critical("event=node_fatal cause=\"{}\"", reason);
    const std::lock_guard guard{mutex_};
    if (fatal_.empty())
      fatal_ = std::move(reason);
  }

  void note_refusal(const link_event& e) {
    const std::lock_guard guard{mutex_};
    if (e.kind == link_event_kind::refused)
      refused_[e.rank] = e.cause;
    else if (e.kind != link_event_kind::lost)
      refused_.erase(e.rank);
  }

  void note_registration(const link_event& e) {
    if ((e.kind != link_event_kind::registered && e.kind != link_event_kind::restored) || e.rank.pool != serving_pool())
      return;
    const std::lock_guard guard{mutex_};
    if (const auto warning = io::front::tokenizer_warning(config_.front.model, e.model_name);
        !warning.empty() && (engine_version_.empty() || model_name_ != e.model_name))
      spdlog::warn("event=no_tokenizer rank={} cause=\"{}\"", e.rank.rank, warning);
    model_name_ = e.model_name;
    max_model_len_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(e.max_model_len, 0xffffffff));
    engine_version_ = e.engine_version;
  }

  template <class Answer, class... Question>
  std::optional<Answer> ask(Question... question) {
    return ask_of<Answer>(directory_->introspector(), std::move(question)...);
  }

  template <class Answer, class Target, class... Question>
  std::optional<Answer> ask_of(const Target& target, Question... question) {
    if (target == nullptr)
      return std::nullopt;
    caf::scoped_actor self{system_};
    std::optional<Answer> result;
    self->request(target, std::chrono::seconds{2}, question...)
        .receive([&](Answer& answer) { result = std::move(answer); }, [](const caf::error&) {});
    return result;
  }

  // Keeps the newest snapshot for those who must not wait.
  void watch() {
    while (running_) {
      if (auto snapshot = ask<node_snapshot>(snapshot_atom::value)) {
        const std::lock_guard guard{mutex_};
        snapshot_ = std::move(*snapshot);
        snapshot_known_ = true;
      }
      if (config_.ready_with_fewer_s > 0)
        go_without_missing_ranks();
      std::unique_lock lock{mutex_};
      wake_.wait_for(lock, std::chrono::milliseconds{was_ready_ ? 500 : 20}, [this] { return !running_; });
    }
  }

  // The others serve when an awaited rank does not come.
  void go_without_missing_ranks() {
    const auto waited_s = core::to_seconds(clock_.now() - started_at_);
    if (waited_s < config_.ready_with_fewer_s)
      return;
    const auto missing = info().not_ready_reason;
    {
      const std::lock_guard guard{mutex_};
      const auto& pools = snapshot_.pools;
      if (was_ready_ || pools.size() != config_.pools.size() ||
          std::any_of(pools.begin(), pools.end(), [](const pool_view& v) { return v.ranks_up == 0; }))
        return;
      was_ready_ = true;
    }
    spdlog::warn("event=ready_with_fewer after_s={} cause={:?}", config_.ready_with_fewer_s, missing);
    events_.add(clock_.now(), "node", "ready", "without all ranks", missing);
  }

  [[nodiscard]] core::node_info info() const {
    const std::lock_guard guard{mutex_};
    core::node_info result;
    const auto serving = serving_pool();
    bool all_up = snapshot_known_;
    bool all_joined = snapshot_known_ && snapshot_.pools.size() == config_.pools.size();
    if (!all_joined)
      result.not_ready_reason = "starting";
    for (const auto& view : snapshot_.pools) {
      if (view.ranks_up < view.ranks_awaited)
        all_joined = false;
      if (view.ranks_up == 0)
        all_up = false;
      if (view.ranks_up < view.ranks_awaited || view.ranks_up == 0)
        result.not_ready_reason = "pool " + view.name + " has " + std::to_string(view.ranks_up) + " of " +
                                  std::to_string(view.ranks_awaited) + " ranks: " + missing_ranks(view, refused_);
      if (view.pool != serving)
        continue;
      result.dp_size = view.dp_size;
      for (const auto& rank : view.ranks) {
        result.max_total_num_tokens += rank.kv_capacity;
        result.max_running_requests = std::max(result.max_running_requests, rank.max_running);
      }
    }
    // All awaited ranks make a node ready; after that, one rank of each pool keeps it so.
    was_ready_ = was_ready_ || all_joined;
    result.ready = was_ready_ && all_up && !draining_;
    if (draining_)
      result.not_ready_reason = "draining";
    if (result.ready)
      result.not_ready_reason.clear();
    result.requests_in_flight = static_cast<std::uint32_t>(snapshot_.requests.in_flight());
    for (const auto& [rank, cause] : refused_)
      result.refused_ranks.push_back(
          fmt::format("{}/{} was refused: {}", config_.pools.at(rank.pool).options.name, rank.rank, cause));
    result.max_model_len = max_model_len_;
    result.engine_version = engine_version_;
    result.model_name = model_name_;
    const bool single = config_.pools.size() == 1;
    const auto role = config_.pools[0].options.role;
    result.disaggregation_mode =
        !single || role == core::pool_role::unified ? "null" : std::string{core::to_string(role)};
    return result;
  }

  [[nodiscard]] std::vector<core::rank_load> loads() const {
    std::vector<core::rank_load> result;
    const auto now = clock_.now();
    const std::lock_guard guard{mutex_};
    for (const auto& view : snapshot_.pools) {
      for (const auto& rank : view.ranks) {
        core::rank_load l;
        l.rank = rank.rank;
        l.max_running_requests = rank.max_running;
        l.kv_total_tokens = rank.kv_capacity;
        core::load_report report;
        if (board_->read(hub_->board_slot(rank.rank), report) && report.epoch == rank.epoch) {
          l.num_running = report.num_running;
          l.num_waiting = report.num_waiting;
          l.kv_used_tokens = report.kv_used_tokens;
          l.kv_total_tokens = report.kv_total_tokens;
          l.report_age_s = core::to_seconds(now - report.received_at);
          // An engine reports with its outputs only: the last report of a rank that fell idle still shows its load. A
          // busy one reports every 50 ms, so that a controller that is just rebuilding its ledger empties nothing here.
          if (rank.requests == 0 && l.report_age_s > 0.2) {
            l.num_running = 0;
            l.num_waiting = 0;
            l.kv_used_tokens = 0;
          }
        } else {
          l.num_running = rank.requests;
          l.kv_used_tokens = rank.tokens;
        }
        result.push_back(l);
      }
    }
    return result;
  }

  [[nodiscard]] std::vector<std::string> pool_names() const {
    std::vector<std::string> names;
    for (const auto& pool : config_.pools)
      names.push_back(pool.options.name);
    return names;
  }

  void add_routes() {
    using io::http_answer;
    using io::http_query;
    const auto no_answer = [] {
      return http_answer{503, "text/plain", "the introspector did not answer within 2 s\n"};
    };
    const auto with_snapshot = [this, no_answer](auto view) {
      return [this, no_answer, view](const http_query&) -> http_answer {
        const auto snapshot = ask<node_snapshot>(snapshot_atom::value);
        return snapshot ? view(*snapshot) : no_answer();
      };
    };
    admin_->get("/", [](const http_query&) { return http_answer{200, "text/html; charset=utf-8", page_html}; });
    admin_->get("/healthz", [](const http_query&) { return http_answer{200, "text/plain", "ok\n"}; });
    admin_->get("/readyz", [this](const http_query&) {
      const auto i = info();
      return i.ready ? http_answer{200, "text/plain", "ready\n"}
                     : http_answer{503, "text/plain", "not ready: " + i.not_ready_reason + "\n"};
    });
    admin_->get("/actors", with_snapshot([=](const node_snapshot& s) { return as_json(actors_json(s)); }));
    admin_->get("/ranks", with_snapshot([=](const node_snapshot& s) { return as_json(ranks_json(s)); }));
    admin_->get("/ranks/history",
                [=, this](const http_query&) { return as_json(load_history_json(load_history_.all(), pool_names())); });
    admin_->get("/status", with_snapshot([=, this](const node_snapshot& s) {
                  return as_json(status_json(s, info(), config_.front.model));
                }));
    admin_->get("/metrics", with_snapshot([this](const node_snapshot& s) {
                  const auto i = info();
                  const auto front = front_->counters();
                  return http_answer{200, "text/plain; version=0.0.4",
                                     metrics_text({s, i, hub_->counters(), front, dispatch_seconds_, decision_seconds_,
                                                   decisions_ ? decisions_->lines_lost() : 0})};
                }));
    admin_->get("/requests", [=, this](const http_query& q) {
      const auto limit = q.number("limit", std::uint64_t{100});
      if (!limit)
        return http_answer{400, "text/plain", "limit: \"" + q.get("limit") + "\" is not a number\n"};
      const auto list = ask<request_list>(list_atom::value, std::min<std::uint64_t>(*limit, 10'000));
      return list ? as_json(requests_json(*list)) : no_answer();
    });
    admin_->get("/v1/loads", [=, this](const http_query&) { return as_json(loads_json(loads(), pool_names())); });
    operator_backend backend{
        {},
        events_,
        request_stream_,
        [this] { return clock_.now(); },
        config_.drain_s,
        admin_token_,
        [this](const rank_command& command) { return ask_of<rank_command_result>(directory_->supervisor(), command); },
        [this](const policy_change& change) { return ask_of<policy_change_result>(directory_->supervisor(), change); },
        [this](const std::string& rid) { return ask<placement_list>(placement_query{rid}); }};
    backend.pools = pool_names();
    add_operator_routes(*admin_, backend);
    if (config_.fault_injection)
      admin_->post("/fault/crash", [this](const http_query& q) {
        auto no = denied(admin_token_, q);
        return no ? *no : crash(q);
      });
  }

  io::http_answer crash(const io::http_query& q) {
    crash_child order;
    order.role = q.get("role");
    const auto pool = q.get("pool");
    const bool of_a_pool = order.role == "dp_controller" || order.role == "dp_rank";
    if (of_a_pool) {
      const auto found = std::find_if(config_.pools.begin(), config_.pools.end(),
                                      [&](const pool_config& p) { return pool.empty() || p.options.name == pool; });
      if (found == config_.pools.end())
        return {404, "text/plain", "pool: there is no \"" + pool + "\"\n"};
      order.rank.pool = found->options.index;
      if (order.role == "dp_rank") {
        const auto number = q.get("rank", "0");
        const auto end = number.data() + number.size();
        if (std::from_chars(number.data(), end, order.rank.rank).ptr != end)
          return {400, "text/plain", "rank: \"" + number + "\" is not a number\n"};
        if (order.rank.rank >= found->options.ranks_max)
          return {404, "text/plain",
                  "rank: pool " + found->options.name + " has at most " + std::to_string(found->options.ranks_max) +
                      " ranks\n"};
      }
    } else if (order.role == "request_manager") {
      const auto index = q.number("index", std::uint64_t{0});
      if (!index || *index >= config_.managers)
        return {404, "text/plain",
                "index: \"" + q.get("index") + "\" is not one of 0 to " + std::to_string(config_.managers - 1) + "\n"};
      order.rank.rank = static_cast<std::uint16_t>(*index);
    } else if (order.role != "load_forwarder" && order.role != "introspector") {
      return {404, "text/plain",
              "role: \"" + order.role +
                  "\" is not request_manager, dp_controller, dp_rank, load_forwarder or introspector\n"};
    }
    if (const auto supervisor = directory_->supervisor(); supervisor != nullptr)
      caf::anon_send(supervisor, std::move(order));
    return {200, "text/plain", "sent\n"};
  }

  node_config config_;
  state_folder state_dir_;
  steady_clock clock_;
  const core::timestamp started_at_ = clock_.now();
  core::event_log events_;
  core::load_history load_history_;
  std::string admin_token_;
  std::optional<state_keeper> state_; // only with a state_dir of its own name
  core::doorbell doorbell_;
  std::unique_ptr<history_file> history_;
  std::unique_ptr<record::decision_file> decisions_;
  std::deque<record::decision_writer> decision_writers_; // these two by pool; they are pointed to
  record::request_stream request_stream_{block_tokens_of(config_.pools)};
  std::deque<record::stream_recorder> stream_recorders_;
  std::vector<core::decision_recorders> recorders_; // by pool
  // Those who wait for a rank count too.
  prometheus::Histogram dispatch_seconds_{prometheus::Histogram::BucketBoundaries{
      1e-5,   1.5e-5, 2e-5,   2.5e-5, 3e-5, 4e-5, 5e-5,   6e-5, 7e-5, 8e-5,   9e-5, 1e-4, 1.25e-4,
      1.5e-4, 2e-4,   2.5e-4, 3e-4,   4e-4, 5e-4, 6.5e-4, 8e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3,
      7e-3,   1e-2,   3e-2,   0.1,    1,    2.5,  5,      10,   30,   60,     600}};
  prometheus::Histogram decision_seconds_{prometheus::Histogram::BucketBoundaries{
      2.5e-7, 5e-7, 1e-6, 2e-6, 3e-6, 5e-6, 7.5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 0.1}};
  // Everything that actors point to stands before the system, so that it outlives them.
  std::shared_ptr<core::load_board> board_;
  std::unique_ptr<io::engine_hub> hub_;
  std::unique_ptr<actor_intake> intake_;
  std::unique_ptr<io::front::scheduler_front> front_;
  actor_config system_config_;
  caf::actor_system system_;
  std::shared_ptr<actor_directory> directory_;
  std::unique_ptr<io::admin_server> admin_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  node_snapshot snapshot_;
  bool snapshot_known_ = false;
  mutable bool was_ready_ = false;
  std::map<core::rank_id, std::string> refused_; // why, of those that have not registered since
  std::uint32_t max_model_len_ = 0;
  std::string engine_version_;
  std::string model_name_;
  std::string fatal_;

  std::atomic<bool> running_{false};
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopped_{false};
  std::thread forward_thread_;
  std::thread watch_thread_;
};

node::node(node_config config) : impl_(std::make_unique<impl>(std::move(config))) {}
node::~node() = default;

std::string node::grpc_address() const {
  return impl_->grpc_address();
}
std::string node::admin_address() const {
  return impl_->admin_address();
}
std::string node::handshake_endpoint(std::size_t pool) const {
  return impl_->handshake_endpoint(pool);
}
const node_config& node::config() const {
  return impl_->config();
}
bool node::ready() const {
  return impl_->ready();
}
std::string node::not_ready_reason() const {
  return impl_->not_ready_reason();
}
std::string node::fatal_reason() const {
  return impl_->fatal_reason();
}
bool node::drain(std::chrono::milliseconds timeout) {
  return impl_->drain(timeout);
}
void node::hurry() noexcept {
  impl_->hurry();
}
void node::stop() noexcept {
  impl_->stop();
}

} // namespace rankwise::app
