#pragma once

#include "actors/supervisor.hpp"
#include "core/request/history.hpp"
#include "messages/type_ids.hpp"
#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/layouts.hpp"

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The real actors on CAF's deterministic scheduler and in virtual time; engines, fronts and sockets are the test's.
namespace rankwise::test {

class fake_link final : public core::rank_link {
 public:
  struct frame {
    core::rank_id rank;
    core::rank_epoch epoch = 0;
    core::frame_kind kind = core::frame_kind::add;
    std::string payload;
  };
  core::send_result send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame sent) noexcept override {
    if (result == core::send_result::queued)
      frames.push_back({rank, epoch, sent.kind, std::move(sent.payload)});
    return result;
  }
  [[nodiscard]] core::timestamp last_output(core::rank_id) const noexcept override { return last; }
  void give_up(core::rank_id rank, core::rank_epoch, std::string) noexcept override { given_up.push_back(rank); }
  void close(core::rank_id rank, core::rank_epoch) noexcept override { closed.push_back(rank); }

  std::vector<frame> frames;
  std::vector<core::rank_id> closed;
  std::vector<core::rank_id> given_up;
  core::send_result result = core::send_result::queued;
  core::timestamp last{};
};

class fake_sink final : public core::stream_sink {
 public:
  void deliver(core::stream_batch&& batch) noexcept override {
    for (const auto& e : batch.events) {
      for (std::uint32_t i = 0; i < e.token_count; ++i)
        tokens[e.stream].push_back(batch.tokens[e.token_offset + i]);
      if (e.finish != core::finish_reason::none)
        ++finished[e.stream];
      if (e.outcome_index != core::stream_event::no_index)
        outcomes[e.stream].push_back(batch.outcomes[e.outcome_index]);
    }
  }
  void fail_owner(core::owner_id owner, core::outcome why) noexcept override {
    failed_owners.emplace_back(owner, std::move(why));
  }

  std::map<core::stream_id, std::vector<std::int32_t>> tokens;
  std::map<core::stream_id, int> finished;
  std::map<core::stream_id, std::vector<core::outcome>> outcomes;
  std::vector<std::pair<core::owner_id, core::outcome>> failed_owners;
};

class node : public testing::Test {
 protected:
  struct actor_config : caf::actor_system_config {
    actor_config() {
      add_message_types<caf::id_block::rankwise>();
      set("scheduler.policy", caf::atom("testing"));
    }
  };

  /// What an engine was sent: one ADD frame.
  struct add {
    core::rank_id rank;
    core::rank_epoch epoch = 0;
    wire::sglang::engine_rid rid;
  };

  void start(std::uint16_t ranks = 1, core::pool_options pool = {}) {
    core::pool_topology topology;
    topology.unified = 0;
    start_pools({std::move(pool)}, topology);
    for (std::uint16_t r = 0; r < ranks; ++r)
      join(r, 1, ranks);
  }

  /// A prefill pool (0) and a decode pool (1) of one rank each.
  void start_pair(core::pool_options prefill = {}) {
    prefill.name = "prefill";
    prefill.role = core::pool_role::prefill;
    core::pool_options decode;
    decode.name = "decode";
    decode.index = 1;
    decode.role = core::pool_role::decode;
    core::pool_topology topology;
    topology.prefill = 0;
    topology.decode = 1;
    start_pools({prefill, decode}, topology);
    join(0, 1);
    for (const auto kind : {link_event_kind::hello, link_event_kind::registered}) {
      auto e = event(kind, 0, 1);
      e.rank.pool = 1;
      say(std::move(e));
    }
  }

  void start_pools(std::vector<core::pool_options> pools, core::pool_topology topology) {
    supervisor_config c;
    c.managers = managers;
    c.pools = std::move(pools);
    c.requests.pools = topology;
    c.board = board;
    c.link = &link;
    c.sink = &sink;
    c.history = &history;
    c.loads = &loads;
    c.events = &events;
    c.rank_timing = timing;
    c.recorders = recorders;
    c.directory = directory;
    c.detach_forwarder = false;
    c.on_fatal = [this](std::string reason) { fatal.push_back(std::move(reason)); };
    anon_supervisor = system.spawn(supervisor, std::move(c));
    settle();
  }

  void TearDown() override {
    caf::anon_send_exit(anon_supervisor, caf::exit_reason::user_shutdown);
    settle();
    anon_supervisor = nullptr;
    directory->clear();
    history.finish();
  }

  /// Runs until nobody has anything to do at this moment.
  void settle() {
    while (scheduler.try_run_once()) {
    }
  }

  void advance(core::duration by) {
    constexpr core::duration step = std::chrono::milliseconds{2};
    for (core::duration done{}; done < by; done += step) {
      scheduler.advance_time(step);
      settle();
    }
  }

  core::timestamp now() { return scheduler.clock().now(); }

  link_event event(link_event_kind kind, std::uint16_t rank, core::rank_epoch epoch, std::uint32_t dp_size = 1) {
    link_event e;
    e.kind = kind;
    e.rank = {0, rank};
    e.epoch = epoch;
    e.cause = "test";
    if (kind == link_event_kind::registered) {
      e.kv_capacity = 1'000'000;
      e.max_running = 256;
      e.chunk_tokens = 8192;
      e.data_parallel_size = dp_size;
      e.max_model_len = 32'768;
      e.engine_version = "sglang-0.5.23";
      e.layouts = wire::sglang::sglang_0_5_23_layouts();
    }
    return e;
  }
  void say(link_event e) {
    caf::anon_send(anon_supervisor, std::move(e));
    settle();
  }
  void join(std::uint16_t rank, core::rank_epoch epoch, std::uint32_t dp_size = 1) {
    say(event(link_event_kind::hello, rank, epoch));
    say(event(link_event_kind::registered, rank, epoch, dp_size));
  }

  void submit(core::stream_id stream, const std::string& rid, std::optional<std::int32_t> pin = {},
              std::int32_t priority = 0, std::size_t prompt_tokens = 10) {
    post(stream, rid, pin, priority, prompt_tokens);
    settle();
  }
  /// The same, but nobody has read it yet.
  void post(core::stream_id stream, const std::string& rid, std::optional<std::int32_t> pin = {},
            std::int32_t priority = 0, std::size_t prompt_tokens = 10) {
    core::generate_request r;
    r.rid = rid;
    r.input_ids.assign(prompt_tokens, 7);
    r.sampling.max_new_tokens = 16;
    r.data_parallel_rank = pin;
    r.priority = priority;
    const auto to = manager_of(rid);
    caf::anon_send(to.handle, submit_request{stream, std::make_shared<const core::generate_request>(std::move(r))});
  }

  actor_directory::manager_entry manager_of(const std::string& rid) {
    return directory->manager_for(std::hash<std::string>{}(rid));
  }

  /// Every ADD frame of the client's rid, in order.
  std::vector<add> adds_of(const std::string& rid) {
    std::vector<add> result;
    for (const auto& f : link.frames) {
      const auto begin = f.kind == core::frame_kind::add ? f.payload.find(rid + "~") : std::string::npos;
      if (begin == std::string::npos)
        continue;
      const auto end = f.payload.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.!", begin + rid.size() + 1);
      const auto parsed = wire::sglang::parse_engine_rid(f.payload.substr(begin, end - begin));
      EXPECT_TRUE(parsed.has_value());
      if (parsed)
        result.push_back({f.rank, f.epoch, *parsed});
    }
    return result;
  }
  add only_add(const std::string& rid) {
    const auto all = adds_of(rid);
    EXPECT_EQ(all.size(), 1u) << rid;
    return all.empty() ? add{} : all.back();
  }
  std::size_t frames(core::frame_kind kind) {
    return static_cast<std::size_t>(
        std::count_if(link.frames.begin(), link.frames.end(), [&](const auto& f) { return f.kind == kind; }));
  }

  void output(const add& to, std::vector<std::int32_t> tokens, core::finish_reason finish = core::finish_reason::none) {
    core::output_batch b;
    b.rank = to.rank;
    b.epoch = to.epoch;
    b.received_at = now();
    core::output_item item;
    item.handle = to.rid.handle;
    item.attempt = to.rid.attempt;
    item.token_count = static_cast<std::uint32_t>(tokens.size());
    item.finish = finish;
    b.items.push_back(item);
    b.tokens = std::move(tokens);
    b.number = ++batches;
    core::split_by_owner(std::move(b), [this](core::output_batch part) {
      if (const auto manager = directory->manager_of(part.owner); manager.handle != nullptr)
        caf::anon_send(manager.handle, std::move(part));
    });
    settle();
  }

  void crash(const std::string& role, core::rank_id rank = {}) {
    caf::anon_send(anon_supervisor, crash_child{role, rank});
    settle();
  }

  void report(std::uint16_t rank, std::uint64_t sequence, std::uint64_t kv_used, core::rank_epoch epoch = 1) {
    core::load_report r;
    r.rank = {0, rank};
    r.epoch = epoch;
    r.sequence = sequence;
    r.received_at = now();
    r.kv_used_tokens = kv_used;
    r.kv_total_tokens = 1'000'000;
    if (board->publish(rank, r))
      if (auto forwarder = directory->load_forwarder())
        caf::anon_send(forwarder, wake_atom::value);
  }

  template <class Result, class Handle, class... Args>
  Result ask(const Handle& whom, Args... args) {
    caf::scoped_actor self{system};
    auto pending = self->request(whom, caf::infinite, args...);
    settle();
    Result result{};
    pending.receive([&](Result& r) { result = std::move(r); },
                    [&](const caf::error& e) { ADD_FAILURE() << system.render(e); });
    return result;
  }
  rank_command_result wish(std::uint16_t rank, rank_wish what, core::duration deadline = {}, bool force = false) {
    return ask<rank_command_result>(anon_supervisor, rank_command{{0, rank}, what, deadline, force});
  }
  core::rank_state state_of_rank(std::uint16_t rank) {
    for (const auto& row : pool().ranks)
      if (row.rank.rank == rank)
        return row.state;
    return core::rank_state::removed;
  }
  std::vector<core::state_event> events_of(const std::string& kind) {
    auto all = events.since(0);
    std::erase_if(all, [&](const core::state_event& e) { return e.kind != kind; });
    return all;
  }
  child_list children() { return ask<child_list>(anon_supervisor, list_atom::value); }
  actor_status child(const std::string& role) {
    for (const auto& c : children().children)
      if (c.status.role == role)
        return c.status;
    ADD_FAILURE() << "no " << role;
    return {};
  }
  pool_view pool(std::uint16_t number = 0) {
    for (const auto& c : children().children) {
      if (c.status.role != "dp_controller" || c.handle == nullptr)
        continue;
      auto view = ask<pool_view>(caf::actor_cast<dp_controller_actor>(c.handle), list_atom::value);
      if (view.pool == number)
        return view;
    }
    ADD_FAILURE() << "no controller";
    return {};
  }
  core::request_counts counts() {
    core::request_counts sum;
    for (const auto& manager : directory->managers())
      sum += ask<core::request_counts>(manager.handle, counts_atom::value);
    return sum;
  }

  actor_config config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  fake_link link;
  fake_sink sink;
  core::history_checker history;
  core::load_history loads;
  core::event_log events;
  core::rank_timing timing;                        // as of start()
  std::uint16_t managers = 1;                      // the same
  std::uint64_t batches = 0;                       // engine batches so far
  std::vector<core::decision_recorders> recorders; // as of start(), by pool
  std::shared_ptr<core::load_board> board = std::make_shared<core::load_board>(64);
  std::shared_ptr<actor_directory> directory = std::make_shared<actor_directory>();
  std::vector<std::string> fatal;
  supervisor_actor anon_supervisor;
};

} // namespace rankwise::test
