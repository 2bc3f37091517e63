#include "record/decision_log.hpp"

#include "core/placement/pool_controller.hpp"
#include "record/json_fields.hpp"

#include <algorithm>
#include <exception>
#include <string_view>
#include <type_traits>
#include <utility>

namespace rankwise::record {

namespace {

using nlohmann::json;

std::int64_t ns(core::timestamp t) noexcept {
  return t.time_since_epoch().count();
}

void put(json& j, core::rank_id rank, core::rank_epoch epoch) {
  j["pool"] = rank.pool;
  j["rank"] = rank.rank;
  j["epoch"] = epoch;
}

/// The same list of fields for writing and reading, so that none is forgotten on one side.
struct to_fields {
  json& j;
  void operator()(const char* name, const core::duration& d) const { j[name] = d.count(); }
  template <class T>
  void operator()(const char* name, const T& value) const {
    j[name] = value;
  }
};
struct from_fields {
  const json& j;
  void operator()(const char* name, core::duration& d) const { d = core::duration{number<std::int64_t>(j, name)}; }
  template <class T>
  void operator()(const char* name, T& value) const {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      value = number<T>(j, name);
    else
      j.at(name).get_to(value);
  }
};

template <class F, class Options>
void tuning_fields(F f, Options& t) {
  f("seed", t.seed);
  f("headroom_ranks_enough", t.headroom_ranks_enough);
  f("prefix_blocks_max", t.prefix_blocks_max);
  f("lockstep", t.lockstep);
  f("headroom_damage_weight", t.headroom_damage_weight);
  f("headroom_decode_weight", t.headroom_decode_weight);
  f("headroom_work_weight", t.headroom_work_weight);
  f("headroom_output_share", t.headroom_output_share);
  f("headroom_progress", t.headroom_progress);
  f("headroom_learn", t.headroom_learn);
  f("headroom_prefix", t.headroom_prefix);
  f("headroom_late_binding", t.headroom_late_binding);
  f("headroom_credit_chunks", t.headroom_credit_chunks);
}

/// Does not compile when a field was added: it belongs into the lists above and below, or decisions cannot be made
/// again; unless none depends on it, as on those of the waiting room, the bootstrap address and the term.
[[maybe_unused]] void every_field_was_thought_of(const core::pool_options& options) {
  [[maybe_unused]] const auto& [name, index, role, ranks_max, ranks_awaited, requests_max, tokens_max, waiting_max,
                                waiting_time, waiting_order, block_tokens, pin, policy, tuning, ledger, health,
                                slow_start, host, port, term] = options;
  [[maybe_unused]] const auto& [seed, ranks_enough, prefix_blocks, lockstep, damage, decode, work, output, progress,
                                learn, prefix, late, credit] = tuning;
  [[maybe_unused]] const auto& [report_lag, report_stale_after] = ledger;
  [[maybe_unused]] const auto& [ejected_share, errors_min, memory, ejection_min, ejection_max] = health;
}

template <class F, class Options>
void pool_fields(F f, Options& o) {
  f("name", o.name);
  f("index", o.index);
  f("ranks_max", o.ranks_max);
  f("requests_in_flight_max", o.requests_in_flight_max);
  f("tokens_in_flight_max", o.tokens_in_flight_max);
  f("prefix_block_tokens", o.prefix_block_tokens);
  f("pin_is_hint", o.pin_is_hint);
  f("policy", o.policy);
  f("report_lag", o.ledger.report_lag);
  f("report_stale_after", o.ledger.report_stale_after);
  f("ejected_share_max", o.health.ejected_share_max);
  f("errors_min", o.health.errors_min);
  f("health_memory", o.health.memory);
  f("ejection_min", o.health.ejection_min);
  f("ejection_max", o.health.ejection_max);
  f("slow_start", o.slow_start);
}

json legs_json(const std::vector<core::leg_record>& legs) {
  json list = json::array();
  for (const auto& leg : legs)
    list.push_back({{"handle", leg.handle},
                    {"attempt", leg.attempt},
                    {"rank", leg.rank.rank},
                    {"pool", leg.rank.pool},
                    {"epoch", leg.epoch},
                    {"prefilled", leg.prefilled},
                    {"released", leg.released},
                    {"prompt", leg.prompt_tokens},
                    {"most", leg.limit_tokens - std::min(leg.limit_tokens, leg.prompt_tokens)}});
  return list;
}

} // namespace

json to_json(const core::pool_options& options) {
  json j;
  pool_fields(to_fields{j}, options);
  j["role"] = static_cast<int>(options.role);
  tuning_fields(to_fields{j["tuning"]}, options.tuning);
  return j;
}

core::pool_options pool_options_of(const json& j) {
  core::pool_options options;
  pool_fields(from_fields{j}, options);
  options.role = static_cast<core::pool_role>(number<std::uint8_t>(j, "role", core::pool_role_count - 1));
  tuning_fields(from_fields{j.at("tuning")}, options.tuning);
  return options;
}

template <class F>
void decision_writer::line(const char* kind, F&& fill) noexcept {
  try {
    json j{{"is", kind}, {"c", controller_}};
    fill(j);
    sink_.write(j.dump(-1, ' ', false, json::error_handler_t::replace));
  } catch (const std::exception&) {
    sink_.lose();
  }
}

void decision_writer::opened(const core::pool_options& options) noexcept {
  blocks_of_ = 0;
  line("opened", [&](json& j) {
    j["version"] = decision_log_version;
    j["options"] = to_json(options);
  });
}

void decision_writer::rank_up(const core::rank_announcement& rank, core::timestamp now) noexcept {
  line("up", [&](json& j) {
    j["t"] = ns(now);
    put(j, rank.rank, rank.epoch);
    j["kv"] = rank.kv_capacity;
    j["running"] = rank.max_running;
    j["chunk"] = rank.chunk_tokens;
    j["size"] = rank.data_parallel_size;
    j["renewed"] = rank.renewed;
    j["state"] = static_cast<int>(rank.state);
  });
}

void decision_writer::rank_state_line(const char* kind, core::rank_id rank, core::rank_epoch epoch,
                                      core::rank_state state) noexcept {
  line(kind, [&](json& j) {
    put(j, rank, epoch);
    j["state"] = static_cast<int>(state);
  });
}

void decision_writer::rank_paused(core::rank_id rank, core::rank_epoch epoch, core::rank_state state) noexcept {
  rank_state_line("paused", rank, epoch, state);
}

void decision_writer::rank_down(core::rank_id rank, core::rank_epoch epoch, core::rank_state state) noexcept {
  rank_state_line("down", rank, epoch, state);
}

void decision_writer::progress(const core::batch_progress& p, core::timestamp now) noexcept {
  line("progress", [&](json& j) {
    j["t"] = ns(now);
    put(j, p.rank, p.epoch);
    j["generated"] = p.generated_tokens;
    j["owner"] = p.owner;
    j["number"] = p.batch;
    if (!p.first_tokens.empty()) {
      j["first"] = p.first_tokens;
      j["cached"] = p.first_cached;
    }
    if (!p.ended.empty()) {
      j["ended"] = p.ended;
      j["tokens"] = p.ended_tokens;
      j["errors"] = p.errors;
    }
  });
}

void decision_writer::ejections_over(core::timestamp now) noexcept {
  line("tick", [&](json& j) { j["t"] = ns(now); });
}

void decision_writer::released(core::request_handle handle, core::timestamp now) noexcept {
  line("released", [&](json& j) {
    j["t"] = ns(now);
    j["handle"] = handle;
  });
}

void decision_writer::ended(core::request_handle handle, core::timestamp now, std::uint32_t generated) noexcept {
  line("ended", [&](json& j) {
    j["t"] = ns(now);
    j["handle"] = handle;
    j["generated"] = generated;
  });
}

void decision_writer::owner_gone(core::owner_id owner, core::timestamp now) noexcept {
  line("owner_gone", [&](json& j) {
    j["t"] = ns(now);
    j["owner"] = owner;
  });
}

void decision_writer::reported(const core::load_report& r) noexcept {
  line("report", [&](json& j) {
    j["t"] = ns(r.received_at);
    put(j, r.rank, r.epoch);
    j["sequence"] = r.sequence;
    j["running"] = r.num_running;
    j["waiting"] = r.num_waiting;
    j["kv_used"] = r.kv_used_tokens;
    j["kv_total"] = r.kv_total_tokens;
  });
}

void decision_writer::restored(const std::vector<core::leg_record>& legs, core::timestamp now) noexcept {
  line("restored", [&](json& j) {
    j["t"] = ns(now);
    j["legs"] = legs_json(legs);
  });
}

void decision_writer::policy_set(std::string_view policy, core::timestamp now) noexcept {
  line("policy", [&](json& j) {
    j["t"] = ns(now);
    j["policy"] = policy;
  });
}

void decision_writer::decided(const core::leg_request& leg, const core::placement_decision& d) noexcept {
  line("decided", [&](json& j) {
    const auto& w = leg.wanted;
    j["t"] = ns(w.now);
    j["handle"] = w.handle;
    j["attempt"] = leg.attempt;
    j["prompt"] = w.prompt_tokens;
    j["most"] = w.max_new_tokens;
    if (leg.data_parallel_rank)
      j["pin"] = *leg.data_parallel_rank;
    if (w.bootstrap_room)
      j["room"] = *w.bootstrap_room;
    if (w.priority != 0)
      j["priority"] = w.priority;
    if (w.deadline)
      j["deadline"] = ns(*w.deadline);
    if (w.first_token_by)
      j["first_by"] = ns(*w.first_token_by);
    if (w.may_wait)
      j["may_wait"] = true;
    if (!w.blocks.empty()) {
      // One that waits is asked for again and again.
      if (blocks_of_ == w.handle)
        j["blocks"] = "same";
      else
        j["blocks"] = std::vector<std::uint64_t>(w.blocks.begin(), w.blocks.end());
      blocks_of_ = w.handle;
    }
    j["block_tokens"] = w.block_tokens;
    switch (d.what) {
    case core::placement_decision::kind::placed:
      j["to"] = d.rank;
      j["epoch"] = d.epoch;
      if (d.score)
        j["score"] = *d.score;
      break;
    case core::placement_decision::kind::waits:
      j["waits"] = true;
      break;
    case core::placement_decision::kind::refused:
      j["refused"] = static_cast<int>(d.reason);
      break;
    }
  });
}

} // namespace rankwise::record
