#pragma once

#include "core/base/outcome.hpp"
#include "core/load/load_report.hpp"
#include "core/placement/orders.hpp"
#include "core/placement/placement_record.hpp"
#include "core/placement/pool_controller.hpp"
#include "core/rank/rank_machine.hpp"
#include "core/request/output_batch.hpp"
#include "core/request/request.hpp"
#include "core/request/request_table.hpp"

#include <caf/error.hpp>
#include <caf/meta/load_callback.hpp>
#include <caf/meta/type_name.hpp>

#include <memory>

/// How the values of src/core are written into messages. Fields are only ever appended; tests/unit/messages holds the
/// bytes.
namespace rankwise::core {

namespace detail {

// CAF 0.17 knows neither std::optional nor steady_clock; both travel as plain values beside a callback that stores
// them.
inline std::int64_t to_wire(timestamp t) {
  return t.time_since_epoch().count();
}
inline timestamp from_wire(std::int64_t ns) {
  return timestamp{duration{ns}};
}

template <class T>
struct optional_on_wire {
  bool present;
  T value;
  explicit optional_on_wire(const std::optional<T>& o) : present(o.has_value()), value(o.value_or(T{})) {}
  void store(std::optional<T>& o) const {
    if (present)
      o = value;
    else
      o.reset();
  }
};

struct time_on_wire {
  bool present;
  std::int64_t value;
  explicit time_on_wire(const std::optional<timestamp>& t) : present(t.has_value()), value(t ? to_wire(*t) : 0) {}
  void store(std::optional<timestamp>& t) const {
    if (present)
      t = from_wire(value);
    else
      t.reset();
  }
};

} // namespace detail

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_id& x) {
  return f(caf::meta::type_name("rank_id"), x.pool, x.rank);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sampling_params& x) {
  detail::optional_on_wire interval{x.stream_interval};
  detail::optional_on_wire seed{x.sampling_seed};
  auto load = [&]() -> caf::error {
    interval.store(x.stream_interval);
    seed.store(x.sampling_seed);
    return {};
  };
  return f(caf::meta::type_name("sampling_params"), x.max_new_tokens, x.min_new_tokens, x.temperature, x.top_p, x.top_k,
           x.min_p, x.frequency_penalty, x.presence_penalty, x.repetition_penalty, x.stop, x.stop_token_ids,
           x.json_schema, x.regex, x.ebnf, x.structural_tag, x.ignore_eos, x.skip_special_tokens,
           x.spaces_between_special_tokens, x.no_stop_trim, interval.present, interval.value, x.logit_bias,
           seed.present, seed.value, caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, bootstrap_info& x) {
  return f(caf::meta::type_name("bootstrap_info"), x.host, x.port, x.room);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, generate_request& x) {
  detail::optional_on_wire pin{x.data_parallel_rank};
  detail::optional_on_wire bootstrap{x.bootstrap};
  detail::time_on_wire deadline{x.deadline};
  detail::time_on_wire first_token_by{x.first_token_by};
  auto load = [&]() -> caf::error {
    pin.store(x.data_parallel_rank);
    bootstrap.store(x.bootstrap);
    deadline.store(x.deadline);
    first_token_by.store(x.first_token_by);
    return {};
  };
  return f(caf::meta::type_name("generate_request"), x.rid, x.input_ids, x.sampling, x.samples, x.stream, pin.present,
           pin.value, bootstrap.present, bootstrap.value, deadline.present, deadline.value, x.priority,
           first_token_by.present, first_token_by.value, caf::meta::load_callback(load));
}

namespace detail {

/// A request_ptr inside a message: written by value, read into a new shared value.
struct request_on_wire {
  generate_request value;
  explicit request_on_wire(bool reads, const request_ptr& p) {
    if (reads && p)
      value = *p;
  }
  void store(request_ptr& p) { p = std::make_shared<const generate_request>(std::move(value)); }
};

} // namespace detail

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, outcome& x) {
  return f(caf::meta::type_name("outcome"), x.kind, x.reason, x.text, x.engine_status);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, load_report& x) {
  auto at = detail::to_wire(x.received_at);
  auto load = [&]() -> caf::error {
    x.received_at = detail::from_wire(at);
    return {};
  };
  return f(caf::meta::type_name("load_report"), x.rank, x.epoch, x.sequence, at, x.num_running, x.num_waiting,
           x.kv_used_tokens, x.kv_total_tokens, caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, leg_id& x) {
  return f(caf::meta::type_name("leg_id"), x.handle, x.attempt);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, place_order& x) {
  detail::optional_on_wire pin{x.data_parallel_rank};
  detail::optional_on_wire bootstrap{x.bootstrap};
  detail::time_on_wire deadline{x.deadline};
  detail::time_on_wire first_token_by{x.first_token_by};
  auto load = [&]() -> caf::error {
    pin.store(x.data_parallel_rank);
    bootstrap.store(x.bootstrap);
    deadline.store(x.deadline);
    first_token_by.store(x.first_token_by);
    return {};
  };
  return f(caf::meta::type_name("place_order"), x.handle, x.attempt, x.sample, x.of_pair, x.rid, x.prompt_tokens,
           x.max_new_tokens, x.priority, deadline.present, deadline.value, first_token_by.present, first_token_by.value,
           pin.present, pin.value, bootstrap.present, bootstrap.value, x.blocks, caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, placement& x) {
  return f(caf::meta::type_name("placement"), x.handle, x.attempt, x.rank, x.epoch, x.term, x.dp_size, x.bootstrap_host,
           x.bootstrap_port, x.rule);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, refusal& x) {
  return f(caf::meta::type_name("refusal"), x.handle, x.attempt, x.pool, x.reason, x.text);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, end_order& x) {
  return f(caf::meta::type_name("end_order"), x.handle, x.attempt, x.generated);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, pool_orders& x) {
  return f(caf::meta::type_name("pool_orders"), x.owner, x.releases, x.ends, x.places);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, batch_progress& x) {
  return f(caf::meta::type_name("batch_progress"), x.rank, x.epoch, x.owner, x.batch, x.first_tokens, x.first_cached,
           x.ended, x.ended_tokens, x.errors, x.generated_tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, leg_record& x) {
  return f(caf::meta::type_name("leg_record"), x.handle, x.attempt, x.rank, x.epoch, x.prompt_tokens, x.limit_tokens,
           x.prefilled, x.released);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, owner_legs& x) {
  return f(caf::meta::type_name("owner_legs"), x.owner, x.legs);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_view& x) {
  detail::optional_on_wire age{x.report_age};
  auto load = [&]() -> caf::error {
    age.store(x.report_age);
    return {};
  };
  return f(caf::meta::type_name("rank_view"), x.rank, x.requests, x.tokens, x.prefill_tokens, x.work_tokens,
           x.prefilling, x.placed_tokens, x.generated_tokens, x.kv_capacity, x.max_running, x.chunk_tokens,
           x.reported_running, x.reported_waiting, x.prefill_since, x.share, age.present, age.value, x.stale,
           caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, placement_record::candidate& x) {
  detail::optional_on_wire score{x.score};
  auto load = [&]() -> caf::error {
    score.store(x.score);
    return {};
  };
  return f(caf::meta::type_name("candidate"), x.view, score.present, score.value, caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, placement_record& x) {
  auto at = detail::to_wire(x.at);
  auto load = [&]() -> caf::error {
    x.at = detail::from_wire(at);
    return {};
  };
  return f(caf::meta::type_name("placement_record"), x.rid, x.handle, x.attempt, x.sample, x.pool, x.rank, x.epoch,
           x.refused, x.rule, at, x.prompt_tokens, x.max_new_tokens, x.candidates, caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_announcement& x) {
  return f(caf::meta::type_name("rank_announcement"), x.rank, x.epoch, x.kv_capacity, x.max_running, x.chunk_tokens,
           x.data_parallel_size, x.renewed, x.state);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, output_item& x) {
  return f(caf::meta::type_name("output_item"), x.handle, x.attempt, x.token_offset, x.token_count, x.finish,
           x.prompt_tokens, x.completion_tokens, x.cached_tokens, x.finish_status, x.matched_token, x.finish_text,
           x.matched_string);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, output_batch& x) {
  auto at = detail::to_wire(x.received_at);
  auto load = [&]() -> caf::error {
    x.received_at = detail::from_wire(at);
    return {};
  };
  return f(caf::meta::type_name("output_batch"), x.rank, x.epoch, x.owner, x.number, at, x.items, x.tokens, x.texts,
           caf::meta::load_callback(load));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_row& x) {
  return f(caf::meta::type_name("rank_row"), x.rank, x.epoch, x.state, x.requests, x.tokens, x.prefill_tokens,
           x.kv_capacity, x.max_running, x.placements, x.reported, x.report_age_s, x.reported_running,
           x.reported_waiting, x.reported_kv_used, x.share, x.ejected, x.drain_cut);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, controller_counts& x) {
  return f(caf::meta::type_name("controller_counts"), x.placed, x.placed_by, x.refused, x.charges_ended,
           x.ends_of_unknown_charges, x.reports);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, request_counts& x) {
  return f(caf::meta::type_name("request_counts"), x.submitted, x.accepted, x.completed, x.failed, x.cancelled,
           x.refused, x.moved, x.tokens_delivered, x.batches, x.outputs_of_unknown_requests, x.outputs_of_old_epochs,
           x.outputs_of_old_attempts, x.by_failure, x.accepted_open, x.placements_of_old_terms, x.outputs_behind_a_gap);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, request_row& x) {
  detail::optional_on_wire prefill{x.prefill_rank};
  detail::optional_on_wire rank{x.rank};
  auto load = [&]() -> caf::error {
    prefill.store(x.prefill_rank);
    rank.store(x.rank);
    return {};
  };
  return f(caf::meta::type_name("request_row"), x.rid, x.sample, x.stage, prefill.present, prefill.value, rank.present,
           rank.value, x.attempt, x.prompt_tokens, x.completion_tokens, x.age_s, caf::meta::load_callback(load));
}

} // namespace rankwise::core
