#pragma once

#include "core/placement/pool_controller.hpp"
#include "core/request/history.hpp"
#include "core/request/leg_orders.hpp"
#include "core/request/request_table.hpp"

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// A node without actors, sockets and threads: the request table and the controllers of its pools, in virtual time. The
/// test plays the engines. Every end order is noted, and every abort of a leg that its engine runs.
namespace rankwise::core::test {

inline constexpr std::uint64_t kv_capacity = 1'000'000;

inline timestamp at_ms(std::int64_t ms) {
  return timestamp{} + std::chrono::seconds{1000} + std::chrono::milliseconds{ms};
}

inline generate_request make_request(std::string rid, std::size_t prompt_tokens = 10,
                                     std::int32_t max_new_tokens = 16) {
  generate_request r;
  r.rid = std::move(rid);
  r.input_ids.assign(prompt_tokens, 7);
  r.sampling.max_new_tokens = max_new_tokens;
  return r;
}

inline request_ptr share(generate_request r) {
  return std::make_shared<const generate_request>(std::move(r));
}

inline rank_announcement up(std::uint16_t pool, std::uint16_t rank, rank_epoch epoch = 1, std::uint32_t dp_size = 1) {
  rank_announcement a;
  a.rank = {pool, rank};
  a.epoch = epoch;
  a.kv_capacity = kv_capacity;
  a.max_running = 256;
  a.chunk_tokens = 8192;
  a.data_parallel_size = dp_size;
  return a;
}

inline load_report report_of(std::uint16_t rank, std::uint64_t sequence, timestamp received_at, std::uint64_t kv_used,
                             rank_epoch epoch = 1) {
  load_report r;
  r.rank = {0, rank};
  r.epoch = epoch;
  r.sequence = sequence;
  r.received_at = received_at;
  r.kv_used_tokens = kv_used;
  r.kv_total_tokens = kv_capacity;
  return r;
}

/// A controller of pool 0 with `ranks` ranks that are ready.
inline pool_controller make_controller(std::uint16_t ranks, pool_options options = {}) {
  options.ranks_max = std::max(options.ranks_max, ranks);
  pool_controller c{std::move(options)};
  for (std::uint16_t i = 0; i < ranks; ++i)
    c.rank_up(up(c.options().index, i, 1, ranks), at_ms(0));
  return c;
}

inline place_order order_of(request_handle handle, const generate_request& r) {
  return core::order_of(r, {handle, 0});
}

class mini_node {
 public:
  struct sent_leg {
    std::uint16_t pool = 0;
    request_handle handle = 0;
    std::uint32_t attempt = 0;
    rank_id rank;
    rank_epoch epoch = 0;
    bootstrap_info bootstrap;
  };
  mini_node(std::vector<pool_options> pools, std::uint16_t ranks, request_table_options options)
      : table(options, &checker) {
    for (std::uint16_t i = 0; i < pools.size(); ++i) {
      pools[i].index = i;
      controllers.push_back(std::make_unique<pool_controller>(pools[i]));
      for (std::uint16_t r = 0; r < ranks; ++r)
        controllers[i]->rank_up(up(i, r, 1, ranks), now);
    }
    pool_configs = std::move(pools);
    fx.pools.resize(controllers.size());
    for (std::uint16_t i = 0; i < controllers.size(); ++i)
      for (std::uint16_t r = 0; r < ranks; ++r)
        static_cast<void>(table.on_rank_up({i, r}, 1, now, fx));
    pending.resize(controllers.size());
  }

  static mini_node unified(std::uint16_t ranks, pool_options pool = {}, request_table_options options = {}) {
    options.pools.unified = 0;
    return mini_node{{std::move(pool)}, ranks, options};
  }

  static mini_node pairs(std::uint16_t ranks, request_table_options options = {}) {
    pool_options prefill;
    prefill.name = "prefill";
    prefill.role = pool_role::prefill;
    pool_options decode;
    decode.name = "decode";
    decode.role = pool_role::decode;
    options.pools.prefill = 0;
    options.pools.decode = 1;
    return mini_node{{prefill, decode}, ranks, options};
  }

  // The checker's address is in the table.
  mini_node(const mini_node&) = delete;
  mini_node& operator=(const mini_node&) = delete;

  void submit(stream_id stream, generate_request r) {
    table.submit(stream, share(std::move(r)), now, fx);
    flush();
  }
  void cancel(stream_id stream, failure why = failure::client_cancelled) {
    table.cancel(stream, why, now, fx);
    flush();
  }
  void abort(const std::string& rid) {
    table.abort(rid, now, fx);
    flush();
  }
  void tick() {
    table.on_tick(now, fx);
    flush();
  }

  /// The engine says `count` tokens of the leg, and how it finished.
  /// `engine_count`: how many tokens the engine says that it made; 0 = it does not say.
  void output(const sent_leg& leg, std::uint32_t count, finish_reason finish = finish_reason::none,
              std::int32_t status = 0, std::uint32_t engine_count = 0) {
    output_batch b;
    b.rank = leg.rank;
    b.epoch = leg.epoch;
    b.received_at = now;
    output_item item;
    item.handle = leg.handle;
    item.attempt = leg.attempt;
    item.token_count = count;
    item.finish = finish;
    item.completion_tokens = engine_count;
    item.finish_status = status;
    if (finish == finish_reason::abort) {
      item.finish_text = 0;
      b.texts.emplace_back("no memory");
    }
    b.tokens.assign(count, 5);
    b.items.push_back(item);
    table.on_outputs(b, fx);
    flush();
  }

  /// The rank goes down: its controller hears of it, and then the owner.
  void lose(rank_id rank, rank_epoch epoch = 1) {
    controllers[rank.pool]->rank_down(rank, epoch);
    std::erase_if(running, [&](const auto& leg) { return leg.first == rank; });
    table.on_rank_lost(rank, epoch, "killed", now, fx);
    flush();
  }

  /// A new incarnation of the rank takes work: its owner hears of it, and then the controller.
  void replace(rank_id rank, rank_epoch epoch, std::uint32_t ranks) {
    static_cast<void>(table.on_rank_up(rank, epoch, now, fx));
    controllers[rank.pool]->rank_up(up(rank.pool, rank.rank, epoch, ranks), now);
    flush();
  }

  /// The controller comes up again with nothing in its memory; its ranks announce themselves to it.
  void restart_controller(std::uint16_t pool, std::uint16_t ranks) {
    ++pool_configs[pool].term;
    controllers[pool] = std::make_unique<pool_controller>(pool_configs[pool]);
    pending[pool] = {};
    for (std::uint16_t r = 0; r < ranks; ++r)
      controllers[pool]->rank_up(up(pool, r, 1, ranks), now);
    restored = table.on_controller_started(pool, pool_configs[pool].term, fx);
    restored_lost = controllers[pool]->restore(restored.legs, now);
    flush();
  }

  /// Orders reach the controllers only when the test says so.
  void hold_orders() { holding = true; }
  void pump() {
    holding = false;
    flush();
  }

  [[nodiscard]] const sent_leg& leg_on(std::uint16_t pool, std::size_t i) const {
    std::size_t n = 0;
    for (const auto& leg : sent)
      if (leg.pool == pool && n++ == i)
        return leg;
    throw std::out_of_range("no such leg was sent");
  }
  [[nodiscard]] std::size_t charges() const {
    std::size_t n = 0;
    for (const auto& c : controllers)
      n += c->charge_count();
    return n;
  }
  [[nodiscard]] std::uint32_t requests_on(std::uint16_t rank, std::uint16_t pool = 0) const {
    return controllers[pool]->figures(rank, now).requests;
  }
  [[nodiscard]] std::size_t aborts_of(request_handle handle) const {
    std::size_t n = 0;
    for (const auto& [pool, h] : engine_aborts)
      n += h == handle ? 1u : 0u;
    return n;
  }

  timestamp now = at_ms(0);
  history_checker checker;
  request_table table;
  std::vector<std::unique_ptr<pool_controller>> controllers;
  std::vector<pool_options> pool_configs;
  request_effects fx;
  bool holding = false;
  bool queues_full = false; ///< dispatches fail for want of room in the send queue
  std::vector<pool_orders> pending;
  std::vector<sent_leg> sent;                   ///< everything that reached an engine, in order
  std::set<std::pair<rank_id, leg_id>> running; ///< of that, what its rank has not been told the end of
  std::vector<std::pair<std::uint16_t, request_handle>> engine_aborts;
  std::vector<std::pair<std::uint16_t, end_order>> ends;
  owner_legs restored; ///< of the last restart
  std::vector<request_handle> restored_lost;
  std::map<stream_id, std::vector<outcome>> outcomes;
  std::map<stream_id, std::size_t> tokens;
  std::map<stream_id, std::size_t> finishes;

 private:
  void flush() {
    for (;;) {
      auto out = std::move(fx.out);
      const bool progressed = fx.has_progress;
      auto progress = std::move(fx.progress);
      auto dispatches = std::move(fx.dispatches);
      auto closes = std::move(fx.closes);
      for (std::size_t p = 0; p < pending.size(); ++p) {
        auto& from = fx.pools[p];
        auto& to = pending[p];
        to.places.insert(to.places.end(), from.places.begin(), from.places.end());
        to.releases.insert(to.releases.end(), from.releases.begin(), from.releases.end());
        to.ends.insert(to.ends.end(), from.ends.begin(), from.ends.end());
      }
      fx.clear();
      for (const auto& e : out.events) {
        tokens[e.stream] += e.token_count;
        if (e.finish != finish_reason::none)
          ++finishes[e.stream];
        if (e.outcome_index != stream_event::no_index)
          outcomes[e.stream].push_back(out.outcomes[e.outcome_index]);
      }
      for (const auto& d : dispatches)
        send(d);
      for (const auto& close : closes)
        if (running.erase({close.rank, close.leg}) != 0 && close.abort)
          engine_aborts.emplace_back(close.rank.pool, close.leg.handle);
      if (progressed)
        controllers[progress.rank.pool]->progress(progress, now);
      if (holding)
        return;
      bool worked = !dispatches.empty();
      for (std::uint16_t p = 0; p < pending.size(); ++p) {
        auto work = std::move(pending[p]);
        pending[p] = {};
        worked = worked || !work.empty();
        carry_out(p, work);
      }
      if (!worked && fx.out.events.empty() && !fx.has_progress)
        return;
    }
  }

  void carry_out(std::uint16_t p, const pool_orders& work) {
    auto& controller = *controllers[p];
    for (const auto h : work.releases)
      controller.release(h, now);
    for (const auto& end : work.ends) {
      ends.emplace_back(p, end);
      controller.end(end, now);
    }
    for (const auto& order : work.places) {
      auto answer = controller.place(order, now);
      if (auto* refused = std::get_if<refusal>(&answer))
        table.on_refusal(*refused, now, fx);
      else
        table.on_placement(std::get<placement>(answer), now, fx);
    }
  }

  void send(const leg_dispatch& d) {
    if (queues_full) {
      table.on_dispatch_failed(d.rank, d.leg, failure::rank_queue_full, "its queue is full", now, fx);
      return;
    }
    sent.push_back({d.rank.pool, d.leg.handle, d.leg.attempt, d.rank, d.epoch, d.bootstrap.value_or(bootstrap_info{})});
    running.emplace(d.rank, d.leg);
  }
};

} // namespace rankwise::core::test
