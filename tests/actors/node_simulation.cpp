#include "tests/actors/node_simulation.hpp"

#include "actors/supervisor.hpp"
#include "core/request/history.hpp"
#include "messages/type_ids.hpp"
#include "record/decision_log.hpp"
#include "record/decision_replay.hpp"
#include "sim/random.hpp"
#include "tests/actors/event_queue.hpp"
#include "tests/actors/simulated_ranks.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace rankwise::test {

namespace sg = wire::sglang;
using namespace std::chrono_literals;

namespace {

constexpr core::duration request_time_max = 20s;
constexpr core::duration park_retry = 1s;
constexpr std::uint64_t tokens_in_flight_max = 200'000;
constexpr std::size_t ranks_per_pool_max = 8;
constexpr std::uint32_t crashes_max = 4; ///< of an actor without which the node ends: its limit is 5

/// What was observed, line by line: hashed, and printed when asked for.
class journal {
 public:
  explicit journal(bool print) : print_(print) {}

  void line(core::timestamp at, const std::string& text) {
    const auto whole = fmt::format("{:.6f} {}\n", core::to_seconds(at.time_since_epoch()), text);
    hash_ = XXH3_64bits_withSeed(whole.data(), whole.size(), hash_);
    if (print_)
      std::fputs(whole.c_str(), stderr);
  }
  void violation(const std::string& text) {
    if (violations_.size() < violations_max)
      violations_.push_back(text);
    if (print_)
      fmt::print(stderr, "VIOLATION {}\n", text);
  }

  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
  [[nodiscard]] std::vector<std::string> violations() const { return violations_; }

 private:
  static constexpr std::size_t violations_max = 100;
  bool print_;
  std::uint64_t hash_ = 0;
  std::vector<std::string> violations_;
};

/// RequestManager's history: checked, written down, and asked which attempts are still waited for.
class observed_history final : public core::history_recorder {
 public:
  explicit observed_history(journal& log) : log_(log) {}

  void record(const core::history_event& e) noexcept override {
    log_.line(e.at,
              fmt::format("history {} stream {} sample {} handle {} attempt {} rank {}/{} epoch {} tokens {}+{} {} "
                          "{}",
                          core::to_string(e.kind), e.stream, e.sample, e.handle, e.attempt, e.rank.pool, e.rank.rank,
                          e.epoch, e.first_index, e.count, core::to_string(e.ended_as), core::to_string(e.reason)));
    checker_.record(e);
    if (e.kind == core::history_kind::accepted)
      accepted_.insert(e.stream);
    if (e.kind == core::history_kind::outcome)
      ended_.insert(e.stream);
    if (e.kind == core::history_kind::placed)
      placed_[e.handle] = {e.stream, e.attempt, false};
    if (e.kind == core::history_kind::finished)
      placed_[e.handle].finished = true;
  }

  /// RequestManager died: its streams end by the Supervisor's word.
  void end_by_restart(core::stream_id stream, core::timestamp now) {
    if (ended_.contains(stream))
      return;
    core::history_event e;
    e.at = now;
    e.kind = core::history_kind::outcome;
    e.stream = stream;
    e.ended_as = accepted_.contains(stream) ? core::outcome_kind::failed : core::outcome_kind::refused;
    e.reason = core::failure::request_manager_restarted;
    record(e);
  }

  [[nodiscard]] bool has_ended(core::stream_id stream) const { return ended_.contains(stream); }

  /// nullopt: the history says nothing of the handle, e.g. because its placement is still on the way.
  [[nodiscard]] std::optional<bool> is_wanted(const sg::engine_rid& rid) const {
    const auto found = placed_.find(rid.handle);
    if (found == placed_.end())
      return std::nullopt;
    const auto& p = found->second;
    return !p.finished && rid.attempt >= p.attempt && !ended_.contains(p.stream);
  }

  void finish() { checker_.finish(); }
  [[nodiscard]] const std::vector<std::string>& violations() const { return checker_.violations(); }

 private:
  struct placed_sample {
    core::stream_id stream = 0;
    std::uint32_t attempt = 0;
    bool finished = false;
  };
  journal& log_;
  core::history_checker checker_;
  std::set<core::stream_id> accepted_;
  std::set<core::stream_id> ended_;
  std::map<core::request_handle, placed_sample> placed_;
};

/// Every client of the node: knows what each may be told, and says when it was told something else.
class observed_clients final : public core::stream_sink {
 public:
  struct client {
    std::string rid;
    core::owner_id owner = 0;
    bool has_deadline = false;
    std::vector<std::uint32_t> tokens; // by sample
    std::vector<bool> finished;        // by sample
    std::optional<core::outcome> ended;
  };

  observed_clients(journal& log, std::function<core::timestamp()> now, bool repeats_after_outcome)
      : log_(log), now_(std::move(now)), repeats_after_outcome_(repeats_after_outcome) {}

  void open(core::stream_id stream, const core::generate_request& request, core::owner_id owner) {
    auto& c = clients_[stream];
    c.rid = request.rid;
    c.owner = owner;
    c.has_deadline = request.deadline.has_value();
    c.tokens.resize(request.samples);
    c.finished.resize(request.samples);
    ++open_;
  }

  void deliver(core::stream_batch&& batch) noexcept override {
    for (const auto& e : batch.events) {
      take(e, batch);
      const bool over = e.outcome_index != core::stream_event::no_index || e.finish != core::finish_reason::none;
      if (over && repeats_after_outcome_ && e.token_count > 0)
        take(e, batch);
    }
  }

  void fail_owner(core::owner_id owner, core::outcome why) noexcept override {
    log_.line(now_(), fmt::format("clients of owner {} are told: {}", owner, why.text));
    for (auto& [stream, c] : clients_)
      if (!c.ended && c.owner == owner) {
        end(c, why);
        if (on_failed)
          on_failed(stream);
      }
  }

  [[nodiscard]] std::size_t open_count() const { return open_; }
  [[nodiscard]] const std::map<core::stream_id, client>& all() const { return clients_; }

  std::function<void(core::stream_id)> on_failed;

 private:
  void complain(core::stream_id stream, const std::string& what) {
    log_.violation(fmt::format("client of stream {}: {}", stream, what));
  }

  void end(client& c, core::outcome why) {
    c.ended = std::move(why);
    --open_;
  }

  void take(const core::stream_event& e, const core::stream_batch& batch) {
    log_.line(now_(), fmt::format("client {} sample {} tokens {} finish {} outcome {}", e.stream, e.sample,
                                  e.token_count, static_cast<int>(e.finish),
                                  e.outcome_index == core::stream_event::no_index
                                      ? "none"
                                      : core::to_string(batch.outcomes[e.outcome_index].reason)));
    const auto found = clients_.find(e.stream);
    if (found == clients_.end())
      return complain(e.stream, "unknown");
    auto& c = found->second;
    if (c.ended)
      return complain(e.stream, "told something after the outcome");
    if (e.outcome_index != core::stream_event::no_index)
      return end(c, batch.outcomes[e.outcome_index]);
    if (e.sample >= c.tokens.size())
      return complain(e.stream, "a sample that it did not ask for");
    if (c.finished[e.sample])
      complain(e.stream, "told something after a sample was complete");
    const auto name = c.tokens.size() > 1 ? fmt::format("{}-{}", c.rid, e.sample) : c.rid;
    const auto crc = sg::rid_crc32(name);
    for (std::uint32_t i = 0; i < e.token_count; ++i)
      if (batch.tokens[e.token_offset + i] != sg::expected_token(crc, c.tokens[e.sample]++))
        complain(e.stream, fmt::format("token {} of sample {} is another one", c.tokens[e.sample] - 1, e.sample));
    if (e.finish == core::finish_reason::none)
      return;
    c.finished[e.sample] = true;
    if (std::all_of(c.finished.begin(), c.finished.end(), [](bool f) { return f; }))
      end(c, core::outcome{});
  }

  journal& log_;
  std::function<core::timestamp()> now_;
  bool repeats_after_outcome_;
  std::map<core::stream_id, client> clients_;
  std::size_t open_ = 0;
};

enum class fault : std::uint8_t {
  stall_actor,
  freeze_shortly,
  full_queue,
  freeze_long,
  cut_and_reconnect,
  cut_and_restart,
  kill,
  restart_at_once,
  hello_twice,
  register_again,
  die_aloud,
  crash_manager,
  crash_controller,
  crash_rank,
  crash_rank_and_controller,
  crash_forwarder,
  crash_introspector,
};
constexpr std::uint8_t fault_count = 17;
/// The faults before this one break nothing: whatever is charged is ended exactly once.
constexpr auto first_breaking_fault = fault::full_queue;

struct actor_config : caf::actor_system_config {
  actor_config() {
    add_message_types<caf::id_block::rankwise>();
    set("scheduler.policy", caf::atom("testing"));
  }
};

class node_simulation {
 public:
  explicit node_simulation(const simulation_options& options)
      : options_(options), random_(options.seed), log_(options.trace), history_(log_),
        clients_(
            log_, [this] { return now(); }, options.bug == planted_bug::token_delivered_after_outcome) {
    clients_.on_failed = [this](core::stream_id stream) { history_.end_by_restart(stream, now()); };
    choose_shape();
    start_node();
  }

  ~node_simulation() {
    caf::anon_send_exit(supervisor_, caf::exit_reason::user_shutdown);
    settle();
    supervisor_ = nullptr;
    directory_->clear();
  }

  simulation_result run() {
    for (const auto rank : ranks_->ranks())
      ranks_->start_process(rank);
    run_for(100ms);
    plan_clients();
    plan_faults();
    run_for(busy_time_);
    come_to_rest();
    probe_token_cap();
    check_rest();
    return result();
  }

 private:
  using controller_base = dp_controller_actor::stateful_base<dp_controller_state>;
  using rank_base = dp_rank_actor::stateful_base<dp_rank_state>;
  using manager_base = request_manager_actor::stateful_base<request_manager_state>;
  using supervisor_base = supervisor_actor::stateful_base<supervisor_state>;

  core::timestamp now() { return scheduler_.clock().now(); }
  bool chance(double share) { return random_.uniform() < share; }
  core::duration some(core::duration max) {
    return core::duration{random_.below(static_cast<std::uint64_t>(max.count()))};
  }
  void after(core::duration delay, std::function<void()> what) { events_.at(now() + delay, std::move(what)); }

  // -- the node ------------------------------------------------------------------------------------------------------

  void choose_shape() {
    constexpr std::array<std::uint16_t, 3> counts{1, 2, 4};
    managers_ = options_.managers != 0 ? options_.managers : counts[options_.seed % counts.size()];
    pairs_ = chance(0.4);
    breaks_ = options_.seed % 8 != 0;
    is_long_ = chance(0.25);
    busy_time_ = 800ms + some(is_long_ ? core::duration{4s} : core::duration{1500ms});
    job_share_ = chance(0.5) ? 0.99 : random_.uniform(0.6, 0.99);
    for (std::uint8_t f = 0; f < fault_count; ++f)
      if ((breaks_ || f < static_cast<std::uint8_t>(first_breaking_fault)) && chance(0.5))
        faults_.push_back(static_cast<fault>(f));
  }

  void start_node() {
    const std::array policies{"headroom", "headroom", "power_of_two", "round_robin", "total_tokens"};
    supervisor_config c;
    simulated_ranks_options world;
    const auto add_pool = [&](const char* name, core::pool_role role) {
      core::pool_options p;
      p.name = name;
      p.index = static_cast<std::uint16_t>(c.pools.size());
      p.role = role;
      p.ranks_max = ranks_per_pool_max;
      p.policy = policies[random_.below(policies.size())];
      p.tuning.seed = random_.bits();
      p.tokens_in_flight_max = tokens_in_flight_max;
      if (chance(0.2))
        p.requests_in_flight_max = 5 + static_cast<std::uint32_t>(random_.below(10));
      c.pools.push_back(p);
      world.pools.push_back({role, static_cast<std::uint16_t>(1 + random_.below(3))});
    };
    if (pairs_) {
      add_pool("prefill", core::pool_role::prefill);
      add_pool("decode", core::pool_role::decode);
      c.requests.pools.prefill = 0;
      c.requests.pools.decode = 1;
    } else {
      add_pool("unified", core::pool_role::unified);
      c.requests.pools.unified = 0;
    }
    pool_count_ = c.pools.size();
    world.delay_max = 100us + some(5ms);
    world.receiver_delay_max = chance(0.3) ? some(50ms) : core::duration{};
    world.report_loss = chance(0.5) ? random_.uniform() : 0;
    world.error_share = chance(0.3) ? 0.05 : 0;
    world.aborts_overtake = options_.bug == planted_bug::abort_overtakes_its_request;
    world.outputs_keep_epoch = options_.bug == planted_bug::epoch_not_compared;

    simulated_ranks_callbacks callbacks;
    callbacks.on_link_event = [this](link_event e) {
      if (e.epoch > 1 && (e.kind == link_event_kind::hello || e.kind == link_event_kind::reconnected))
        ++counts_.epochs;
      caf::anon_send(supervisor_, std::move(e));
    };
    callbacks.on_outputs = [this](core::output_batch batch) {
      batch.number = ++batches_[batch.rank];
      core::split_by_owner(std::move(batch), [this](core::output_batch part) {
        const auto manager = directory_->manager_of(part.owner);
        if (manager.handle == nullptr)
          return;
        ++manager.backlog->batches;
        caf::anon_send(manager.handle, std::move(part));
      });
    };
    callbacks.on_report = [this](const core::load_report& report) {
      if (board_->publish(report.rank.pool * ranks_per_pool_max + report.rank.rank, report))
        if (auto forwarder = directory_->load_forwarder())
          caf::anon_send(forwarder, wake_atom::value);
    };
    callbacks.is_wanted = [this](std::string_view rid) { return is_wanted(rid); };
    callbacks.now = [this] { return now(); };
    callbacks.trace = [this](const std::string& text) { log_.line(now(), text); };
    callbacks.violation = [this](const std::string& text) { log_.violation(text); };
    ranks_ = std::make_unique<simulated_ranks>(std::move(world), events_, random_, std::move(callbacks));

    c.managers = managers_;
    c.requests.request_time_max = request_time_max;
    c.rank_timing.silence.floor = chance(0.5) ? core::duration{300ms} : core::duration{5s};
    c.park_retry = park_retry;
    c.board = board_;
    c.link = ranks_.get();
    c.sink = &clients_;
    c.history = &history_;
    c.directory = directory_;
    c.detach_forwarder = false;
    c.seed = random_.bits();
    if (options_.record_decisions)
      for (std::uint32_t i = 0; i < c.pools.size(); ++i)
        c.recorders.push_back(
            {decision_writers_.emplace_back(std::make_unique<record::decision_writer>(decisions_, i)).get()});
    c.on_fatal = [this](const std::string& reason) { log_.violation("the node ended: " + reason); };
    supervisor_ = system_.spawn(supervisor, std::move(c));
    settle();
  }

  bool is_wanted(std::string_view engine_rid) {
    const auto rid = sg::parse_engine_rid(engine_rid);
    if (!rid)
      return false;
    if (const auto known = history_.is_wanted(*rid))
      return *known;
    // Sample and client of "c12-0" are not told apart by their name alone; whoever may be meant is asked.
    const auto client = sg::client_part(engine_rid);
    return std::any_of(clients_.all().begin(), clients_.all().end(), [&](const auto& entry) {
      const auto& c = entry.second;
      return !c.ended && !history_.has_ended(entry.first) &&
             (client == c.rid || client.substr(0, c.rid.size() + 1) == c.rid + "-");
    });
  }

  // -- time and turns ------------------------------------------------------------------------------------------------

  static caf::actor_id id_of(const caf::resumable* job) { return dynamic_cast<const caf::abstract_actor&>(*job).id(); }

  static std::string name_of(const caf::resumable* job) {
    const auto* actor = dynamic_cast<const caf::local_actor*>(job);
    return actor == nullptr ? "?" : actor->name();
  }

  bool run_some_job() {
    auto& jobs = scheduler_.jobs;
    turns_.clear();
    for (std::size_t i = 0; i < jobs.size(); ++i)
      if (stalled_.empty() || !stalled_.contains(id_of(jobs[i])))
        turns_.push_back(i);
    if (turns_.empty() || !chance(job_share_))
      return false;
    const auto turn = jobs.begin() + static_cast<std::ptrdiff_t>(turns_[random_.below(turns_.size())]);
    if (stall_next_) {
      log_.line(now(), fmt::format("fault: {} {} does not run for a while", name_of(*turn), id_of(*turn)));
      stalled_[id_of(*turn)] = now() + *std::exchange(stall_next_, std::nullopt);
      return true;
    }
    std::rotate(jobs.begin(), turn, turn + 1);
    scheduler_.run_once();
    ++counts_.messages;
    return true;
  }

  void take_step() {
    if (run_some_job())
      return;
    if (scheduler_.jobs.empty())
      check_quiet_moment();
    auto next = events_.next_time();
    const auto no_later_than = [&next](core::timestamp t) {
      if (!next || t < *next)
        next = t;
    };
    const bool is_event = next.has_value();
    const auto event_time = next;
    if (const auto& timeouts = scheduler_.clock().schedule(); !timeouts.empty())
      no_later_than(timeouts.begin()->first);
    for (const auto& [actor, until] : stalled_)
      no_later_than(until);
    if (!next)
      return;
    if (*next > now())
      scheduler_.advance_time(*next - now());
    std::erase_if(stalled_, [this](const auto& s) { return s.second <= now(); });
    if (is_event && *event_time <= now())
      events_.run_next();
  }

  void run_for(core::duration time) {
    bool over = false;
    after(time, [&over] { over = true; });
    while (!over)
      take_step();
  }

  /// Until nobody has anything to do at this moment.
  void settle() {
    while (scheduler_.try_run_once())
      ++counts_.messages;
  }

  // -- clients -------------------------------------------------------------------------------------------------------

  void plan_clients() {
    const auto count = 10 + random_.below(is_long_ ? 150 : 40);
    for (core::stream_id stream = 1; stream <= count; ++stream)
      after(some(busy_time_), [this, stream] { submit_something(stream); });
  }

  void submit_something(core::stream_id stream) {
    core::generate_request r;
    // Some name a rid that is in use, or was.
    r.rid = fmt::format("c{}", chance(0.05) ? 1 + random_.below(stream) : stream);
    r.input_ids.assign(1 + random_.below(200), 7);
    r.samples = chance(0.1) ? 2 + static_cast<std::uint32_t>(random_.below(2)) : 1;
    const bool endless = chance(0.25);
    r.sampling.max_new_tokens = endless ? 5000 : 1 + static_cast<std::int32_t>(random_.below(40));
    if (chance(0.1))
      r.data_parallel_rank = static_cast<std::int32_t>(random_.below(3));
    if (pairs_ && r.samples == 1 && chance(0.1)) // a gateway paired the legs
      r.bootstrap = core::bootstrap_info{"gateway", 8998, static_cast<std::int64_t>(1'000'000 + stream)};
    if (chance(0.15))
      r.deadline = now() + 20ms + some(800ms);
    if (endless || chance(0.2))
      plan_leaving(stream, r.rid);
    submit(stream, std::move(r));
  }

  void plan_leaving(core::stream_id stream, const std::string& rid) {
    const auto times = chance(0.2) ? 2 : 1;
    for (int i = 0; i < times; ++i)
      after(some(chance(0.3) ? core::duration{5ms} : core::duration{700ms}), [this, stream, rid] {
        if (chance(0.3))
          tell(directory_->manager_for(hash_of(rid)), abort_request{rid});
        // An abort by rid may have met another client's request of that name.
        cancel(stream);
      });
  }

  static std::size_t hash_of(const std::string& rid) { return XXH3_64bits(rid.data(), rid.size()); }

  void submit(core::stream_id stream, core::generate_request r) {
    ++counts_.requests;
    const auto manager = directory_->manager_for(hash_of(r.rid));
    clients_.open(stream, r, manager.owner);
    log_.line(now(), fmt::format("client {} submits {} x{} of {} tokens to owner {}", stream, r.rid, r.samples,
                                 r.sampling.max_new_tokens, manager.owner));
    ++manager.backlog->submissions;
    tell(manager, submit_request{stream, std::make_shared<const core::generate_request>(std::move(r))});
  }

  void cancel(core::stream_id stream) {
    const auto client = clients_.all().find(stream);
    if (client != clients_.all().end())
      tell(directory_->manager_of(client->second.owner), cancel_request{stream, core::failure::client_cancelled});
  }

  template <class Message>
  static void tell(const actor_directory::manager_entry& manager, Message message) {
    if (manager.handle != nullptr)
      caf::anon_send(manager.handle, std::move(message));
  }

  // -- faults --------------------------------------------------------------------------------------------------------

  void plan_faults() {
    if (options_.bug == planted_bug::charge_released_twice)
      after(some(busy_time_), [this] { end_some_charge(); });
    if (faults_.empty())
      return;
    const auto count = random_.below(is_long_ ? 60 : 25);
    for (std::uint64_t i = 0; i < count; ++i)
      after(some(busy_time_), [this] { inflict(faults_[random_.below(faults_.size())]); });
  }

  struct crash_order {
    std::string role;
    core::rank_id rank;
    core::timestamp at;
  };
  std::vector<core::timestamp> crashes_of(const std::string& role, core::rank_id rank) {
    std::vector<core::timestamp> result;
    for (const auto& c : crashes_)
      if (c.role == role && c.rank == rank)
        result.push_back(c.at);
    return result;
  }

  core::rank_id some_rank() {
    const auto all = ranks_->ranks();
    return all[random_.below(all.size())];
  }

  void crash(const std::string& role, core::rank_id rank = {}) {
    if ((role == "request_manager" || role == "dp_controller") && crashes_of(role, rank).size() >= crashes_max)
      return;
    ++counts_.actor_crashes;
    crashes_.push_back({role, rank, now()});
    log_.line(now(), fmt::format("fault: {} {}/{} crashes", role, rank.pool, rank.rank));
    caf::anon_send(supervisor_, crash_child{role, rank});
  }

  void inflict(fault what) {
    ++counts_.faults;
    const auto rank = some_rank();
    log_.line(now(), fmt::format("fault: number {} on {}/{}", static_cast<int>(what), rank.pool, rank.rank));
    switch (what) {
    case fault::stall_actor:
      stall_next_ = 1ms + some(chance(0.2) ? core::duration{600ms} : core::duration{60ms});
      break;
    case fault::freeze_shortly:
      ranks_->freeze(rank);
      after(some(400ms), [this, rank] { ranks_->thaw(rank); });
      break;
    case fault::full_queue:
      ranks_->fill_queue(rank, now() + some(200ms));
      break;
    case fault::freeze_long:
      ranks_->freeze(rank);
      after(500ms + some(500ms), [this, rank] { ranks_->thaw(rank); });
      break;
    case fault::cut_and_reconnect:
      ranks_->cut(rank);
      after(some(700ms), [this, rank] { ranks_->reconnect(rank); });
      break;
    case fault::cut_and_restart:
      ranks_->cut(rank);
      after(some(700ms), [this, rank] { ranks_->start_process(rank); });
      break;
    case fault::kill:
      ranks_->kill(rank);
      after(some(700ms), [this, rank] { ranks_->start_process(rank); });
      break;
    case fault::restart_at_once:
      ranks_->start_process(rank);
      break;
    case fault::hello_twice:
      ranks_->start_process(rank, true);
      break;
    case fault::register_again:
      ranks_->register_again(rank);
      break;
    case fault::die_aloud:
      ranks_->die_aloud(rank);
      after(100ms + some(500ms), [this, rank] { ranks_->heal(rank); });
      break;
    case fault::crash_manager:
      crash("request_manager", {0, static_cast<std::uint16_t>(random_.below(managers_))});
      break;
    case fault::crash_controller:
      crash("dp_controller", {rank.pool, 0});
      break;
    case fault::crash_rank:
      crash("dp_rank", rank);
      break;
    case fault::crash_rank_and_controller:
      crash("dp_rank", rank);
      crash("dp_controller", {rank.pool, 0});
      break;
    case fault::crash_forwarder:
      crash("load_forwarder");
      break;
    case fault::crash_introspector:
      crash("introspector");
      break;
    }
  }

  /// Planted: an owner's end of some leg comes twice, once while it runs.
  void end_some_charge() {
    auto* controller = controller_of(static_cast<std::uint16_t>(pool_count_ - 1));
    const auto charged = controller == nullptr ? std::vector<core::leg_id>{} : charges_of(*controller);
    if (charged.empty())
      return after(5ms, [this] { end_some_charge(); });
    core::pool_orders orders;
    orders.owner = core::owner_of(charged.front().handle);
    orders.ends.push_back({charged.front().handle, charged.front().attempt, 0});
    caf::anon_send(caf::actor_cast<dp_controller_actor>(controller), std::move(orders));
  }

  // -- looking into the actors; only this thread runs them -----------------------------------------------------------

  template <class Base>
  Base* look_into(const caf::strong_actor_ptr& handle) {
    auto* actor = handle == nullptr ? nullptr : dynamic_cast<Base*>(handle->get());
    return actor == nullptr || actor->getf(caf::monitorable_actor::is_terminated_flag) ? nullptr : actor;
  }

  const supervisor_state& family() {
    return look_into<supervisor_base>(caf::actor_cast<caf::strong_actor_ptr>(supervisor_))->state;
  }
  controller_base* controller_of(std::uint16_t pool) {
    return look_into<controller_base>(family().children.at({"dp_controller", {pool, 0}}).handle);
  }
  static std::vector<core::leg_id> charges_of(const controller_base& c) { return c.state.desk->pool().charged_legs(); }

  /// nullopt: one of them is being restarted.
  std::optional<std::vector<manager_base*>> managers() {
    std::vector<manager_base*> result;
    for (std::uint16_t index = 0; index < managers_; ++index) {
      auto* m = look_into<manager_base>(family().children.at({"request_manager", {0, index}}).handle);
      if (m == nullptr)
        return std::nullopt;
      result.push_back(m);
    }
    return result;
  }

  /// No message is under way: whoever lives agrees with whoever else lives.
  void check_quiet_moment() {
    const auto owners = managers();
    for (std::uint16_t pool = 0; pool < pool_count_; ++pool) {
      auto* c = controller_of(pool);
      if (c == nullptr || c->state.desk->is_settling())
        continue;
      check_ledger(pool, c->state.desk->pool());
      if (!owners)
        continue;
      const auto placed = legs_of(*owners, [pool](const core::request_table& t) { return t.legs_in(pool); });
      auto charged = charges_of(*c);
      const auto unrestored = c->state.desk->unrestored().legs();
      charged.insert(charged.end(), unrestored.begin(), unrestored.end());
      std::sort(charged.begin(), charged.end());
      if (charged != placed)
        complain(pool,
                 fmt::format("{} legs are charged, {} are placed by their owners", charged.size(), placed.size()));
    }
    if (owners)
      for (const auto& [key, child] : family().children)
        if (key.first == "dp_rank")
          check_books(key.second, child, *owners);
  }

  void complain(std::uint16_t pool, const std::string& what) {
    log_.violation(fmt::format("{:.6f} pool {}: {}", core::to_seconds(now().time_since_epoch()), pool, what));
  }

  template <class Ask>
  static std::vector<core::leg_id> legs_of(const std::vector<manager_base*>& owners, Ask ask) {
    std::vector<core::leg_id> result;
    for (const auto* owner : owners) {
      const auto part = ask(*owner->state.table);
      result.insert(result.end(), part.begin(), part.end());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  void check_ledger(std::uint16_t pool, const core::pool_controller& ledger) {
    std::uint64_t requests = 0;
    for (const auto& row : ledger.rows(now())) {
      requests += row.requests;
      if (row.prefill_tokens > tokens_in_flight_max || row.tokens > 2'000'000)
        complain(pool, fmt::format("rank {} has {} tokens, {} of them to prefill", row.rank.rank, row.tokens,
                                   row.prefill_tokens));
    }
    if (requests != ledger.charge_count())
      complain(pool, fmt::format("{} charges, {} requests on its ranks", ledger.charge_count(), requests));
  }

  /// What the rank's book says that its engine runs is what the owners have there.
  void check_books(core::rank_id id, const supervisor_state::child& child, const std::vector<manager_base*>& owners) {
    const auto* rank = look_into<rank_base>(child.handle);
    if (rank == nullptr || !rank->state.announced)
      return;
    const auto epoch = rank->state.announcement.epoch;
    const auto placed = legs_of(owners, [=](const core::request_table& t) { return t.legs_on(id, epoch); });
    if (const auto booked = rank->state.config.books->legs.legs(); booked != placed)
      complain(id.pool,
               fmt::format("rank {} has {} legs in its book, their owners {}", id.rank, booked.size(), placed.size()));
  }

  // -- the end -------------------------------------------------------------------------------------------------------

  bool runs_for_nobody() {
    const auto all = ranks_->ranks();
    return std::any_of(all.begin(), all.end(), [this](auto r) { return !ranks_->running_for_nobody(r).empty(); });
  }

  void come_to_rest() {
    log_.line(now(), "no more faults");
    stall_next_.reset();
    job_share_ = 1;
    const auto until = now() + request_time_max + 5s;
    const auto rested_at = now() + park_retry + 500ms;
    while (now() < until && (now() < rested_at || clients_.open_count() > 0)) {
      for (const auto rank : ranks_->ranks())
        ranks_->heal(rank);
      run_for(100ms);
    }
    run_for(300ms); // a controller tells its ranks every 250 ms what is outstanding
    for (int i = 0; i < 30 && runs_for_nobody(); ++i)
      run_for(100ms);
  }

  /// The cap on tokens in flight is free again: a request that needs all of it is taken.
  void probe_token_cap() {
    constexpr core::stream_id probe = 1'000'000;
    core::generate_request r;
    r.rid = "probe";
    r.input_ids.assign(1, 7);
    r.sampling.max_new_tokens = static_cast<std::int32_t>(tokens_in_flight_max - 1);
    submit(probe, std::move(r));
    run_for(50ms);
    cancel(probe);
    run_for(100ms);
    const auto& ended = clients_.all().at(probe).ended;
    if (!ended || ended->kind == core::outcome_kind::refused)
      log_.violation("a request of all tokens in flight was not taken: " + (ended ? ended->text : "no outcome"));
  }

  void check_rest() {
    history_.finish();
    for (const auto& text : history_.violations())
      log_.violation("history: " + text);
    for (const auto& [stream, c] : clients_.all()) {
      if (!c.ended) {
        log_.violation(fmt::format("client of stream {}: never told an outcome", stream));
        continue;
      }
      if (c.ended->reason == core::failure::deadline_exceeded && !c.has_deadline)
        log_.violation(fmt::format("client of stream {}: waited for the node's limit", stream));
    }
    for (const auto& [key, child] : family().children)
      if (child.handle == nullptr)
        log_.violation(fmt::format("{} {}/{} is not running", key.first, key.second.pool, key.second.rank));
    for (auto* m : managers().value_or(std::vector<manager_base*>{})) {
      const auto& table = *m->state.table;
      if (table.open_streams() != 0 || table.counts().in_flight() != 0)
        log_.violation(fmt::format("RequestManager {}: {} open streams, {} in flight", m->state.config.name,
                                   table.open_streams(), table.counts().in_flight()));
      if (table.counts().outputs_behind_a_gap != 0) // what a broken link loses belongs to an epoch that is over
        log_.violation(fmt::format("RequestManager {}: {} outputs behind a gap, and no link lost any under its epoch",
                                   m->state.config.name, table.counts().outputs_behind_a_gap));
      counts_.moved += table.counts().moved;
    }
    for (std::uint16_t pool = 0; pool < pool_count_; ++pool)
      check_pool_at_rest(pool);
    for (const auto rank : ranks_->ranks())
      check_engine_at_rest(rank);
    if (options_.record_decisions)
      check_decisions();
  }

  void check_decisions() {
    std::istringstream in{decisions_.text};
    const auto replayed = record::replay_decisions(in);
    if (!replayed)
      log_.violation("decision log: " + replayed.error());
    else if (const auto& d = replayed->difference)
      log_.violation(fmt::format("decision log, line {}: {} became {}", d->line, d->recorded, d->replayed));
    else
      counts_.decisions_replayed += replayed->decisions;
  }

  void check_pool_at_rest(std::uint16_t pool) {
    auto* c = controller_of(pool);
    if (c == nullptr)
      return;
    const auto& p = c->state.desk->pool();
    const auto complain = [&](const std::string& what) { log_.violation(fmt::format("pool {}: {}", pool, what)); };
    if (p.charge_count() != 0)
      complain(fmt::format("{} charges at the end", p.charge_count()));
    for (const auto& row : p.rows(now())) {
      if (row.requests != 0 || row.tokens != 0 || row.prefill_tokens != 0)
        complain(fmt::format("rank {} has {} requests, {} tokens, {} of them to prefill at the end", row.rank.rank,
                             row.requests, row.tokens, row.prefill_tokens));
      if (row.state != core::rank_state::ready)
        complain(fmt::format("rank {} is {} at the end", row.rank.rank, core::to_string(row.state)));
    }
    if (p.ranks_up() != static_cast<std::size_t>(std::count_if(
                            family().children.begin(), family().children.end(), [pool](const auto& child) {
                              return child.first.first == "dp_rank" && child.first.second.pool == pool;
                            })))
      complain(fmt::format("{} ranks are up at the end", p.ranks_up()));
    if (breaks_)
      return;
    // A cancel may cross a refusal: its end meets no charge.
    const auto& counts = p.counts();
    if (counts.placed != counts.charges_ended || counts.ends_of_unknown_charges > counts.refused)
      complain(fmt::format("nothing broke, yet {} charges were made, {} ended, and {} ends met none", counts.placed,
                           counts.charges_ended, counts.ends_of_unknown_charges));
  }

  void check_engine_at_rest(core::rank_id rank) {
    const auto unwanted = ranks_->running_for_nobody(rank);
    for (const auto& job : unwanted)
      log_.violation(fmt::format("engine {}/{} still runs {} for nobody", rank.pool, rank.rank, job.engine_rid));
    if (const auto running = ranks_->running(rank); running > unwanted.size())
      log_.violation(fmt::format("engine {}/{} still runs {} requests", rank.pool, rank.rank, running));
  }

  simulation_result result() {
    for (const auto& [stream, c] : clients_.all()) {
      for (const auto tokens : c.tokens)
        counts_.tokens += tokens;
      if (!c.ended)
        continue;
      switch (c.ended->kind) {
      case core::outcome_kind::completed:
        ++counts_.completed;
        break;
      case core::outcome_kind::failed:
        ++counts_.failed;
        break;
      case core::outcome_kind::cancelled:
        ++counts_.cancelled;
        break;
      case core::outcome_kind::refused:
        ++counts_.refused;
        break;
      }
    }
    return {log_.hash(), log_.violations(), counts_};
  }

  simulation_options options_;
  sim::random_source random_;
  journal log_;
  observed_history history_;
  observed_clients clients_;
  event_queue events_;
  std::unique_ptr<simulated_ranks> ranks_;
  simulation_counts counts_;

  bool pairs_ = false;
  bool breaks_ = true; // faults may lose links and actors
  bool is_long_ = false;
  core::duration busy_time_{};
  double job_share_ = 1; // how often a waiting message goes before the world outside
  std::vector<fault> faults_;
  std::uint16_t managers_ = 1;
  std::map<core::rank_id, std::uint64_t> batches_; // engine batches so far
  std::size_t pool_count_ = 1;
  std::vector<crash_order> crashes_;
  std::map<caf::actor_id, core::timestamp> stalled_; // until when an actor gets no turn
  std::optional<core::duration> stall_next_;
  std::vector<std::size_t> turns_;

  struct memory_lines final : record::line_sink {
    std::string text;
    void write(std::string&& line) noexcept override { (text += line) += '\n'; }
    void lose() noexcept override { std::terminate(); }
  };
  memory_lines decisions_;
  std::vector<std::unique_ptr<record::decision_writer>> decision_writers_; // by pool

  actor_config config_;
  caf::actor_system system_{config_};
  caf::scheduler::test_coordinator& scheduler_ = dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  std::shared_ptr<core::load_board> board_ = std::make_shared<core::load_board>(2 * ranks_per_pool_max);
  std::shared_ptr<actor_directory> directory_ = std::make_shared<actor_directory>();
  supervisor_actor supervisor_;
};

} // namespace

simulation_counts& simulation_counts::operator+=(const simulation_counts& other) {
  requests += other.requests;
  completed += other.completed;
  failed += other.failed;
  cancelled += other.cancelled;
  refused += other.refused;
  tokens += other.tokens;
  moved += other.moved;
  faults += other.faults;
  actor_crashes += other.actor_crashes;
  epochs += other.epochs;
  messages += other.messages;
  decisions_replayed += other.decisions_replayed;
  return *this;
}

simulation_result simulate(const simulation_options& options) {
  node_simulation simulation{options};
  return simulation.run();
}

} // namespace rankwise::test
