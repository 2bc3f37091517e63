#include "io/zmq/output_intake.hpp"

#include "core/load/load_report.hpp"
#include "core/request/output_batch.hpp"
#include "io/zmq/rank_links.hpp"
#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/request_codec.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace rankwise::io {

namespace sg = wire::sglang;

namespace {

/// Appends what an engine said about one request to the batch. The tokens are in the batch already.
void append(core::output_batch& batch, const sg::engine_rid& rid, sg::output_item& from) {
  core::output_item item;
  item.handle = rid.handle;
  item.attempt = rid.attempt;
  item.token_offset = from.token_offset;
  item.token_count = from.token_count;
  item.finish = from.finish;
  item.prompt_tokens = from.prompt_tokens;
  item.completion_tokens = from.completion_tokens;
  item.cached_tokens = from.cached_tokens;
  item.finish_status = from.finish_status;
  item.matched_token = from.matched_token;
  const auto keep = [&](std::string& text) {
    if (text.empty())
      return core::stream_event::no_index;
    batch.texts.push_back(std::move(text));
    return static_cast<std::uint32_t>(batch.texts.size() - 1);
  };
  item.finish_text = keep(from.finish_message);
  item.matched_string = keep(from.matched_string);
  batch.items.push_back(item);
}

} // namespace

void output_intake::take(rank_endpoint& e, std::string_view frame) {
  auto output = sg::decode_output(frame);
  if (!output) {
    context_.counters.count_malformed(output.error().kind);
    return;
  }
  if (is_of_another_rank(e, *output))
    return;
  const auto now = context_.callbacks.now();
  e.last_output_ns.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  if (std::holds_alternative<sg::engine_dead>(*output)) {
    context_.callbacks.on_link_event(rank_links::event_of(e, link_event_kind::lost, "ENGINE_CORE_DEAD"));
  } else if (auto* tokens = std::get_if<sg::token_output>(&*output)) {
    take_report(e, tokens->load, tokens->load_malformed, now);
    take_tokens(e, *tokens, now);
  } else if (auto* embeddings = std::get_if<sg::embedding_output>(&*output)) {
    take_report(e, embeddings->load, false, now);
  }
}

/// Counts, and logs once for each incarnation, what names another rank than the one that the link belongs to.
bool output_intake::is_of_another_rank(rank_endpoint& e, const sg::engine_output& output) {
  std::optional<std::uint32_t> said;
  std::size_t outputs = 1;
  if (const auto* tokens = std::get_if<sg::token_output>(&output)) {
    said = tokens->engine_index;
    outputs = std::max<std::size_t>(tokens->items.size(), 1);
  } else if (const auto* embeddings = std::get_if<sg::embedding_output>(&output)) {
    said = embeddings->engine_index;
    outputs = std::max<std::size_t>(embeddings->rids.size(), 1);
  } else if (const auto* reply = std::get_if<sg::control_reply>(&output)) {
    said = reply->engine_index;
  }
  if (!said || *said == e.id.rank)
    return false;
  context_.counters.outputs_of_other_ranks += outputs;
  if (!std::exchange(e.other_rank_told, true))
    spdlog::error("event=outputs_of_other_rank pool={} rank={} epoch={} engine_index={} "
                  "cause=\"outputs on the link of rank {} name another rank; they are dropped\"",
                  context_.pool_of(e.id).name, e.id.rank, e.epoch.load(), *said, e.id.rank);
  return true;
}

/// The load path: a store into the board and, at most, a ring. Nothing here blocks, throws or allocates.
void output_intake::take_report(rank_endpoint& e, const std::optional<sg::load_tail>& load, bool malformed,
                                core::timestamp now) noexcept {
  if (malformed) {
    ++context_.counters.reports_malformed;
    return;
  }
  if (!load) {
    ++context_.counters.reports_absent;
    return;
  }
  ++context_.counters.reports;
  core::load_report report;
  report.rank = e.id;
  report.epoch = e.epoch.load(std::memory_order_relaxed);
  report.sequence = ++e.report_sequence;
  report.received_at = now;
  report.num_running = load->num_running;
  report.num_waiting = load->num_waiting;
  report.kv_used_tokens = load->kv_used_tokens;
  report.kv_total_tokens = load->kv_total_tokens;
  const auto slot = directory_.slot_of(e.id);
  if (!directory_.has_several_ranks(e.id.pool))
    board_->store(slot, report); // nothing to choose: shown, not forwarded
  else if (board_->publish(slot, report))
    context_.callbacks.on_load_report();
}

void output_intake::take_tokens(rank_endpoint& e, sg::token_output& tokens, core::timestamp now) {
  if (tokens.items.empty())
    return;
  core::output_batch batch;
  batch.rank = e.id;
  batch.epoch = e.epoch.load(std::memory_order_relaxed);
  batch.received_at = now;
  batch.tokens = std::move(tokens.tokens);
  batch.items.reserve(tokens.items.size());
  std::vector<std::string> foreign;
  for (auto& item : tokens.items) {
    const auto rid = sg::parse_engine_rid(item.rid);
    if (!rid) {
      ++context_.counters.unknown_rids;
    } else if (rid->boot == context_.options.boot) {
      append(batch, *rid, item);
    } else {
      ++context_.counters.foreign_outputs;
      if (is_to_be_aborted(e, item, now))
        foreign.emplace_back(item.rid);
    }
  }
  if (!foreign.empty())
    abort_foreign(e, foreign);
  if (batch.items.empty())
    return;
  batch.number = ++e.batches;
  core::split_by_owner(std::move(batch), context_.callbacks.on_outputs);
}

/// Whether the engine has to be told, now, to stop a request that an earlier start of the node placed.
bool output_intake::is_to_be_aborted(rank_endpoint& e, const sg::output_item& item, core::timestamp now) {
  if (item.finish == core::finish_reason::none)
    return e.foreign.heard(item.rid, now, context_.options.foreign_requests_max);
  e.foreign.ended(item.rid);
  return false;
}

void output_intake::abort_foreign(rank_endpoint& e, const std::vector<std::string>& rids) {
  const auto sent = sender_.send(e.id, e.epoch.load(), {core::frame_kind::abort, sg::encode_abort(rids), {}});
  if (sent == core::send_result::queued)
    context_.counters.foreign_aborts += rids.size();
  else
    e.foreign.forget(rids); // it has not reconnected yet: the next output asks again
}

} // namespace rankwise::io
