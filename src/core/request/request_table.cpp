#include "core/request/request_table.hpp"

#include "core/placement/block_hashes.hpp"
#include "core/request/leg_orders.hpp"

#include <algorithm>
#include <iterator>

namespace rankwise::core {

void request_effects::clear() {
  for (auto& pool : pools) {
    pool.places.clear();
    pool.releases.clear();
    pool.ends.clear();
  }
  dispatches.clear();
  closes.clear();
  out = stream_batch{};
  progress = batch_progress{};
  has_progress = false;
}

request_counts& request_counts::operator+=(const request_counts& other) noexcept {
  submitted += other.submitted;
  accepted += other.accepted;
  completed += other.completed;
  failed += other.failed;
  cancelled += other.cancelled;
  refused += other.refused;
  moved += other.moved;
  tokens_delivered += other.tokens_delivered;
  batches += other.batches;
  outputs_of_unknown_requests += other.outputs_of_unknown_requests;
  outputs_of_old_epochs += other.outputs_of_old_epochs;
  outputs_of_old_attempts += other.outputs_of_old_attempts;
  outputs_behind_a_gap += other.outputs_behind_a_gap;
  accepted_open += other.accepted_open;
  placements_of_old_terms += other.placements_of_old_terms;
  for (std::size_t i = 0; i < by_failure.size(); ++i)
    by_failure[i] += other.by_failure[i];
  return *this;
}

request_table::request_table(request_table_options options, history_recorder* history)
    : options_(options), history_(history), random_(options.seed) {
  const std::size_t expected = std::min(options_.streams_max, requests_reserved_max);
  streams_.reserve(expected);
  rids_.reserve(expected);
  room_base_ = random_() >> 24; // 40 bits: a room stays below 2^63 whatever the number of ranks
}

// -- slots and handles -----------------------------------------------------------------------------------------------

request_table::slot* request_table::find(request_handle handle) {
  const auto index = slot_of(handle);
  if (index >= slots_.size())
    return nullptr;
  auto& s = slots_[index];
  return s.handle != 0 && s.handle == handle ? &s : nullptr;
}

// There is a slot: submit() has looked.
request_handle request_table::open_slot() {
  std::uint32_t index = free_head_;
  if (index == no_slot) {
    index = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    free_head_ = slots_[index].next_free;
  }
  auto& s = slots_[index];
  const auto used = s.used + 1;
  s = slot{};
  s.used = used;
  s.handle = make_handle(options_.owner, used, index);
  ++open_slots_;
  return s.handle;
}

void request_table::close_slot(request_handle handle) {
  auto* s = find(handle);
  if (s == nullptr)
    return;
  s->handle = 0;
  s->request.reset();
  --open_slots_;
  if (s->used == handle_count_max)
    return; // its handles are used up
  s->next_free = free_head_;
  free_head_ = slot_of(handle);
}

request_table::leg* request_table::leg_in(slot& s, std::uint16_t pool) {
  for (auto& l : s.legs)
    if (l.state != leg_state::none && l.pool == pool)
      return &l;
  return nullptr;
}

std::uint64_t& request_table::generated_on(std::uint16_t pool, std::uint16_t rank) {
  return generated_[rank_id{pool, rank}];
}

// -- history ---------------------------------------------------------------------------------------------------------

void request_table::note(history_kind kind, timestamp at, const slot& s, const leg* l) {
  if (history_ == nullptr)
    return;
  history_event e;
  e.at = at;
  e.kind = kind;
  e.stream = s.stream;
  e.sample = s.sample;
  e.handle = s.handle;
  e.attempt = s.attempt;
  if (l != nullptr) {
    e.rank = {l->pool, l->rank};
    e.epoch = l->epoch;
  }
  history_->record(e);
}

// As the engine said it, not as the leg stands here: the checker compares the two.
void request_table::note_tokens(const slot& s, const output_item& item, const output_batch& batch) {
  if (history_ == nullptr)
    return;
  history_event e;
  e.at = batch.received_at;
  e.kind = history_kind::tokens;
  e.stream = s.stream;
  e.sample = s.sample;
  e.handle = item.handle;
  e.attempt = item.attempt;
  e.rank = batch.rank;
  e.epoch = batch.epoch;
  e.first_index = s.next_index;
  e.count = item.token_count;
  history_->record(e);
}

void request_table::note_outcome(stream_id id, const outcome& why, timestamp at) {
  if (history_ == nullptr)
    return;
  history_event e;
  e.at = at;
  e.kind = history_kind::outcome;
  e.stream = id;
  e.ended_as = why.kind;
  e.reason = why.reason;
  history_->record(e);
}

// -- the life of a stream --------------------------------------------------------------------------------------------

void request_table::submit(stream_id id, request_ptr request, timestamp now, request_effects& fx) {
  ++counts_.submitted;
  const auto refuse = [&](failure why, std::string text) {
    ++counts_.refused;
    ++counts_.by_failure[static_cast<std::size_t>(why)];
    outcome o{outcome_kind::refused, why, std::move(text), 0};
    note_outcome(id, o, now);
    stream_event e;
    e.stream = id;
    e.outcome_index = static_cast<std::uint32_t>(fx.out.outcomes.size());
    fx.out.outcomes.push_back(std::move(o));
    fx.out.events.push_back(e);
  };
  if (streams_.size() >= options_.streams_max)
    return refuse(failure::request_manager_overloaded, "streams_max is " + std::to_string(options_.streams_max));
  if (std::size_t{open_slots_} + std::max(request->samples, 1u) > handle_slots_max)
    return refuse(failure::request_manager_overloaded,
                  std::to_string(open_slots_) + " samples are open, the most is " + std::to_string(handle_slots_max));
  if (rids_.contains(request->rid))
    return refuse(failure::duplicate_rid, "request_id: \"" + request->rid + "\" is in flight");
  if (request->deadline && *request->deadline <= now)
    return refuse(failure::deadline_exceeded, "the deadline had passed when the request arrived");

  auto& stream = streams_[id];
  stream.request = request;
  stream.deadline = now + options_.request_time_max;
  if (request->deadline)
    stream.deadline = std::min(stream.deadline, *request->deadline);
  deadlines_.emplace(stream.deadline, id);
  rids_.emplace(request->rid, id);
  for (std::uint32_t sample = 0; sample < std::max(request->samples, 1u); ++sample) {
    const auto handle = open_slot();
    auto& s = *find(handle);
    s.stream = id;
    s.sample = sample;
    s.request = request;
    s.received_at = now;
    stream.handles.push_back(handle);
    order_placement(handle, s, fx);
  }
}

void request_table::order_placement(request_handle handle, slot& s, request_effects& fx) {
  const auto& pools = options_.pools;
  const bool pairs = pools.pairs();
  s.legs[0] = leg{};
  s.legs[1] = leg{};
  s.legs[0].pool = pools.unified != pool_topology::none  ? pools.unified
                   : pools.decode != pool_topology::none ? pools.decode
                                                         : pools.prefill;
  // Of a pair the leg that waits longer comes first: the decode rank is chosen when there is one that prefills.
  auto& first = s.legs[pairs ? 1 : 0];
  if (pairs)
    first.pool = pools.prefill;
  first.state = leg_state::placing;
  fx.pools[first.pool].places.push_back(place_order_of(handle, s));
}

place_order request_table::place_order_of(request_handle handle, const slot& s) const {
  auto order = order_of(*s.request, {handle, s.attempt}, s.sample);
  order.of_pair = options_.pools.pairs();
  // The decode leg of a pair computes no prompt.
  if (options_.prefix_block_tokens > 0 && s.legs[1].state != leg_state::reserved)
    hash_blocks(s.request->input_ids, options_.prefix_block_tokens, order.blocks);
  return order;
}

bool request_table::is_reachable(rank_id rank, rank_epoch epoch) const {
  const auto way = reachable_.find(rank);
  return way != reachable_.end() && way->second == epoch;
}

void request_table::dispatch(slot& s, leg& l, request_effects& fx) const {
  l.state = leg_state::placed;
  leg_dispatch d;
  d.rank = {l.pool, l.rank};
  d.epoch = l.epoch;
  d.leg = {s.handle, s.attempt};
  d.sample = s.sample;
  d.request = s.request;
  d.bootstrap = s.request->bootstrap;
  if (!d.bootstrap && options_.pools.pairs())
    d.bootstrap = bootstrap_info{s.prefill_placement.bootstrap_host, s.prefill_placement.bootstrap_port, s.room};
  fx.dispatches.push_back(std::move(d));
}

void request_table::accept(stream_entry& stream, const slot& s, timestamp now) {
  if (stream.accepted)
    return;
  stream.accepted = true;
  ++counts_.accepted;
  ++counts_.accepted_open;
  note(history_kind::accepted, now, s, nullptr);
}

void request_table::mint_room(slot& s) {
  const auto ranks = std::max<std::uint64_t>(s.prefill_placement.dp_size, 1);
  s.room = static_cast<std::int64_t>(room_base_++ * ranks + s.prefill_placement.rank.rank % ranks);
}

void request_table::on_placement(const placement& p, timestamp now, request_effects& fx) {
  auto& term = terms_[p.rank.pool];
  if (p.term < term) {
    ++counts_.placements_of_old_terms; // it was ordered again of the controller that took over
    return;
  }
  term = p.term;
  auto* s = find(p.handle);
  if (s == nullptr || s->attempt != p.attempt)
    return; // ended or moved on meanwhile; its end was sent behind the order that this answers
  auto* l = leg_in(*s, p.rank.pool);
  if (l == nullptr || l->state != leg_state::placing)
    return;
  l->rank = p.rank.rank;
  l->epoch = p.epoch;
  auto& stream = streams_.at(s->stream);
  if (s->attempt > 0 && l == &s->legs[0])
    ++counts_.moved;
  if (!is_reachable(p.rank, p.epoch)) { // it went down, or came up anew, while this was decided
    l->state = leg_state::reserved;
    lose_leg(*s, *l, failure::no_rank_available,
             "rank " + std::to_string(p.rank.rank) + " does not take work under epoch " + std::to_string(p.epoch), now,
             fx);
    return;
  }
  if (!options_.pools.pairs()) {
    accept(stream, *s, now);
    note(history_kind::placed, now, *s, l);
    dispatch(*s, *l, fx);
    return;
  }
  l->state = leg_state::reserved;
  if (l == &s->legs[1]) {
    s->prefill_placement = p;
    s->legs[0].state = leg_state::placing;
    fx.pools[s->legs[0].pool].places.push_back(place_order_of(p.handle, *s));
    return;
  }
  if (!s->request->bootstrap)
    mint_room(*s);
  accept(stream, *s, now);
  note(history_kind::placed, now, *s, &s->legs[0]);
  for (auto& each : s->legs)
    dispatch(*s, each, fx);
}

void request_table::on_refusal(const refusal& r, timestamp now, request_effects& fx) {
  auto* s = find(r.handle);
  if (s == nullptr || s->attempt != r.attempt)
    return;
  auto* l = leg_in(*s, r.pool);
  if (l == nullptr || l->state != leg_state::placing)
    return;
  l->state = leg_state::none; // the controller holds no charge for it
  end_stream(s->stream, outcome{outcome_kind::refused, r.reason, r.text, 0}, now, fx);
}

// -- legs that were lost ---------------------------------------------------------------------------------------------

void request_table::on_dispatch_failed(rank_id rank, leg_id id, failure reason, std::string_view text, timestamp now,
                                       request_effects& fx) {
  auto* s = find(id.handle);
  if (s == nullptr || s->attempt != id.attempt)
    return;
  auto* l = leg_in(*s, rank.pool);
  if (l != nullptr && l->state == leg_state::placed && l->rank == rank.rank)
    lose_leg(*s, *l, reason, std::string{text}, now, fx);
}

void request_table::on_rank_lost(rank_id rank, rank_epoch epoch, std::string_view cause, timestamp now,
                                 request_effects& fx) {
  if (const auto way = reachable_.find(rank); way != reachable_.end() && way->second <= epoch)
    reachable_.erase(way);
  for_legs_on(rank, [&](slot& s, leg& l) {
    if (l.epoch <= epoch)
      lose_leg(s, l, failure::rank_lost, "rank " + std::to_string(rank.rank) + " was lost (" + std::string{cause} + ")",
               now, fx);
  });
}

std::vector<leg_id> request_table::on_rank_up(rank_id rank, rank_epoch epoch, timestamp now, request_effects& fx) {
  if (epoch > 1)
    on_rank_lost(rank, epoch - 1, "a new incarnation of it took its place", now, fx);
  reachable_[rank] = epoch;
  return legs_on(rank, epoch);
}

// Of all slots, for that is rare. `f` may end the leg and whatever belongs to its stream.
template <class F>
void request_table::for_legs_on(rank_id rank, F&& f) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    auto& s = slots_[i];
    if (s.handle == 0)
      continue;
    auto* l = leg_in(s, rank.pool);
    if (l != nullptr && l->rank == rank.rank && (l->state == leg_state::reserved || l->state == leg_state::placed))
      f(s, *l);
  }
}

/// The rank runs the leg no more, or never did.
void request_table::lose_leg(slot& s, leg& l, failure why, std::string text, timestamp now, request_effects& fx) {
  fx.pools[l.pool].ends.push_back({s.handle, s.attempt, &l == &s.legs[0] ? s.next_index : 0});
  if (&l == &s.legs[1] && s.next_index > 0) {
    l.state = leg_state::ended; // its KV was handed over: the decode leg goes on
    return;
  }
  if (&l == &s.legs[0] && l.state == leg_state::placed) {
    auto& generated = generated_on(l.pool, l.rank);
    generated -= std::min<std::uint64_t>(generated, s.next_index);
  }
  l.state = leg_state::none;
  move_or_fail(s.handle, why, std::move(text), now, fx);
}

// A request without a token is placed again; one whose client has seen tokens cannot be repeated and ends.
void request_table::move_or_fail(request_handle handle, failure why, std::string text, timestamp now,
                                 request_effects& fx) {
  auto& s = *find(handle);
  if (s.next_index == 0 && s.attempt + 1 < options_.attempts_max) {
    end_legs(handle, s, true, fx);
    ++s.attempt;
    order_placement(handle, s, fx);
    return;
  }
  end_stream(s.stream, outcome{outcome_kind::failed, why, std::move(text), 0}, now, fx);
}

void request_table::end_legs(request_handle handle, slot& s, bool abort, request_effects& fx) {
  for (auto& l : s.legs) {
    if (l.state == leg_state::none || l.state == leg_state::ended)
      continue;
    if (l.state == leg_state::placed) {
      if (&l == &s.legs[0]) {
        auto& generated = generated_on(l.pool, l.rank);
        generated -= std::min<std::uint64_t>(generated, s.next_index);
      }
      fx.closes.push_back({{l.pool, l.rank}, l.epoch, {handle, s.attempt}, abort});
    }
    auto& orders = fx.pools[l.pool];
    // Ends are carried out before places: an order that has not left yet is taken back, its end would come too early.
    if (l.state != leg_state::placing ||
        std::erase_if(orders.places, [&](const place_order& o) { return o.handle == handle; }) == 0)
      orders.ends.push_back({handle, s.attempt, &l == &s.legs[0] ? s.next_index : 0});
    l.state = leg_state::ended;
  }
}

void request_table::end_stream(stream_id id, outcome why, timestamp now, request_effects& fx) {
  const auto found = streams_.find(id);
  if (found == streams_.end())
    return;
  auto& stream = found->second;
  if (stream.accepted && why.kind == outcome_kind::refused)
    why.kind = outcome_kind::failed;
  if (!stream.accepted && why.kind == outcome_kind::failed)
    why.kind = outcome_kind::refused;
  if (!stream.accepted && why.kind == outcome_kind::cancelled && !stream.handles.empty())
    accept(stream, *find(stream.handles.front()), now);
  for (const auto handle : stream.handles) {
    if (auto* s = find(handle)) {
      end_legs(handle, *s, true, fx);
      close_slot(handle);
    }
  }
  switch (why.kind) {
  case outcome_kind::completed:
    ++counts_.completed;
    break;
  case outcome_kind::failed:
    ++counts_.failed;
    break;
  case outcome_kind::cancelled:
    ++counts_.cancelled;
    break;
  case outcome_kind::refused:
    ++counts_.refused;
    break;
  }
  note_outcome(id, why, now);
  if (why.kind != outcome_kind::completed) {
    ++counts_.by_failure[static_cast<std::size_t>(why.reason)];
    stream_event e;
    e.stream = id;
    e.outcome_index = static_cast<std::uint32_t>(fx.out.outcomes.size());
    fx.out.outcomes.push_back(std::move(why));
    fx.out.events.push_back(e);
  }
  deadlines_.erase({stream.deadline, id});
  rids_.erase(stream.request->rid);
  counts_.accepted_open -= stream.accepted ? 1 : 0;
  streams_.erase(found);
}

void request_table::cancel(stream_id stream, failure why, timestamp now, request_effects& fx) {
  end_stream(stream, outcome{outcome_kind::cancelled, why, {}, 0}, now, fx);
}

void request_table::abort(const std::string& rid, timestamp now, request_effects& fx) {
  const auto found = rids_.find(rid);
  if (found != rids_.end())
    cancel(found->second, failure::aborted_by_request, now, fx);
}

void request_table::end_all(failure why, timestamp now, request_effects& fx) {
  std::vector<stream_id> ids;
  ids.reserve(streams_.size());
  for (const auto& [id, stream] : streams_)
    ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const auto id : ids)
    end_stream(id, outcome{outcome_kind::failed, why, {}, 0}, now, fx);
}

void request_table::on_tick(timestamp now, request_effects& fx) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now)
    cancel(deadlines_.begin()->second, failure::deadline_exceeded, now, fx);
}

std::optional<timestamp> request_table::next_deadline() const {
  if (deadlines_.empty())
    return std::nullopt;
  return deadlines_.begin()->first;
}

// -- outputs ---------------------------------------------------------------------------------------------------------

void request_table::on_outputs(const output_batch& batch, request_effects& fx) {
  ++counts_.batches;
  fx.out.tokens.reserve(fx.out.tokens.size() + batch.tokens.size());
  fx.out.events.reserve(fx.out.events.size() + batch.items.size());
  // With hundreds of streams each item finds its slot's memory cold; asking for it some items ahead lets the misses
  // overlap.
  constexpr std::size_t ahead = 6;
  const auto prefetch = [this, &batch](std::size_t i) {
    if (i >= batch.items.size())
      return;
    if (const auto index = slot_of(batch.items[i].handle); index < slots_.size()) {
      const auto* at = reinterpret_cast<const char*>(&slots_[index]);
      __builtin_prefetch(at, 1);
      __builtin_prefetch(at + 64, 1);
    }
  };
  for (std::size_t i = 0; i < ahead; ++i)
    prefetch(i);
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    prefetch(i + ahead);
    const auto& item = batch.items[i];
    auto* s = find(item.handle);
    if (s == nullptr) {
      ++counts_.outputs_of_unknown_requests;
      continue;
    }
    auto* l = leg_in(*s, batch.rank.pool);
    if (l == nullptr || item.attempt != s->attempt) {
      ++counts_.outputs_of_old_attempts;
      continue;
    }
    if (l->rank != batch.rank.rank || l->epoch != batch.epoch || l->state != leg_state::placed) {
      ++counts_.outputs_of_old_epochs;
      continue;
    }
    if (l == &s->legs[1])
      on_prefill_output(item.handle, *s, item, batch, fx);
    else
      on_token_output(item.handle, *s, item, batch, fx);
  }
  if (fx.has_progress || !batch.items.empty()) {
    fx.has_progress = true;
    fx.progress.rank = batch.rank;
    fx.progress.epoch = batch.epoch;
    fx.progress.owner = options_.owner;
    fx.progress.batch = batch.number;
    fx.progress.generated_tokens = generated_on(batch.rank.pool, batch.rank.rank);
  }
}

namespace {

/// An error of the engine's own; statuses of 400 to 499 blame the request.
bool is_engine_fault(const output_item& item) {
  return item.finish == finish_reason::abort && (item.finish_status == 0 || item.finish_status >= 500);
}

outcome engine_failure(const output_item& item, const output_batch& batch) {
  outcome why;
  why.kind = outcome_kind::failed;
  why.reason = item.finish_status != 0 ? failure::engine_error : failure::engine_aborted;
  why.engine_status = item.finish_status;
  why.text = item.finish_text < batch.texts.size() ? batch.texts[item.finish_text] : std::string{};
  return why;
}

} // namespace

// The prefill leg of a pair: its tokens are the decode leg's business, only its end counts.
void request_table::on_prefill_output(request_handle handle, slot& s, const output_item& item,
                                      const output_batch& batch, request_effects& fx) {
  auto& l = s.legs[1];
  if (item.finish == finish_reason::none)
    return;
  l.state = leg_state::ended;
  fx.closes.push_back({batch.rank, batch.epoch, {handle, s.attempt}, false});
  fx.progress.ended.push_back(handle);
  fx.progress.ended_tokens.push_back(0);
  fx.progress.errors += is_engine_fault(item) ? 1 : 0;
  fx.has_progress = true;
  if (item.finish != finish_reason::abort)
    return;
  auto why = engine_failure(item, batch);
  why.reason = failure::partner_leg_failed;
  why.text = "prefill rank " + std::to_string(batch.rank.rank) + ": " + why.text;
  end_stream(s.stream, std::move(why), batch.received_at, fx);
}

// An answer with a hole, or a short one, must never look like a good one. One whose client has seen nothing begins
// anew.
void request_table::on_gap(slot& s, std::uint32_t missing, const output_batch& batch, request_effects& fx) {
  ++counts_.outputs_behind_a_gap;
  move_or_fail(s.handle, failure::tokens_lost,
               std::to_string(missing) + " tokens of rank " + std::to_string(batch.rank.rank) +
                   " never arrived here, by the engine's count",
               batch.received_at, fx);
}

void request_table::on_token_output(request_handle handle, slot& s, const output_item& item, const output_batch& batch,
                                    request_effects& fx) {
  if (const auto arrived = s.next_index + item.token_count; item.completion_tokens > arrived)
    return on_gap(s, item.completion_tokens - arrived, batch, fx);
  auto& l = s.legs[0];
  stream_event e;
  e.stream = s.stream;
  e.sample = s.sample;
  e.prompt_tokens = item.prompt_tokens;
  e.cached_tokens = item.cached_tokens;
  if (item.token_count > 0) {
    if (!l.prefilled) {
      l.prefilled = true;
      fx.progress.first_tokens.push_back(handle);
      fx.progress.first_cached.push_back(item.cached_tokens);
      fx.has_progress = true;
      auto& prefill = s.legs[1];
      if (prefill.state != leg_state::none && !prefill.released) {
        prefill.released = true;
        if (prefill.state != leg_state::ended)
          fx.pools[prefill.pool].releases.push_back(handle);
      }
    }
    note_tokens(s, item, batch);
    e.token_offset = static_cast<std::uint32_t>(fx.out.tokens.size());
    e.token_count = item.token_count;
    fx.out.tokens.insert(fx.out.tokens.end(), batch.tokens.begin() + item.token_offset,
                         batch.tokens.begin() + item.token_offset + item.token_count);
    s.next_index += item.token_count;
    counts_.tokens_delivered += item.token_count;
    generated_on(l.pool, l.rank) += item.token_count;
  }
  // The engine's own count knows of tokens that it trimmed; ours stands in where it gives none.
  e.completion_tokens = item.completion_tokens != 0 ? item.completion_tokens : s.next_index;

  if (item.finish == finish_reason::none) {
    if (item.token_count > 0)
      fx.out.events.push_back(e);
    return;
  }
  l.state = leg_state::ended;
  auto& generated = generated_on(l.pool, l.rank);
  generated -= std::min<std::uint64_t>(generated, s.next_index);
  fx.closes.push_back({batch.rank, batch.epoch, {handle, s.attempt}, false});
  fx.progress.ended.push_back(handle);
  fx.progress.ended_tokens.push_back(s.next_index);
  fx.progress.errors += is_engine_fault(item) ? 1 : 0;
  fx.has_progress = true;
  if (item.finish == finish_reason::abort) {
    if (item.token_count > 0)
      fx.out.events.push_back(e);
    end_stream(s.stream, engine_failure(item, batch), batch.received_at, fx);
    return;
  }
  e.finish = item.finish;
  e.matched_token = item.matched_token;
  if (item.matched_string < batch.texts.size()) {
    e.matched_string_index = static_cast<std::uint32_t>(fx.out.matched_strings.size());
    fx.out.matched_strings.push_back(batch.texts[item.matched_string]);
  }
  fx.out.events.push_back(e);
  note(history_kind::finished, batch.received_at, s, &l);
  const auto stream = s.stream;
  end_legs(handle, s, false, fx); // a prefill leg whose last word is still on the way
  auto& handles = streams_.at(stream).handles;
  std::erase(handles, handle);
  close_slot(handle);
  if (handles.empty())
    end_stream(stream, outcome{}, batch.received_at, fx);
}

// -- restarts and views ----------------------------------------------------------------------------------------------

leg_record request_table::record_of(const slot& s, const leg& l) {
  leg_record r;
  r.handle = s.handle;
  r.attempt = s.attempt;
  r.rank = {l.pool, l.rank};
  r.epoch = l.epoch;
  r.prompt_tokens = s.request->input_ids.size();
  r.limit_tokens = limit_tokens_of(*s.request);
  r.prefilled = l.prefilled;
  r.released = l.released;
  return r;
}

owner_legs request_table::on_controller_started(std::uint16_t pool, controller_term term, request_effects& fx) {
  terms_[pool] = std::max(terms_[pool], term);
  owner_legs result;
  result.owner = options_.owner;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    auto& s = slots_[i];
    if (s.handle == 0)
      continue;
    auto* l = leg_in(s, pool);
    if (l == nullptr || l->state == leg_state::ended)
      continue;
    if (l->state == leg_state::placing)
      fx.pools[pool].places.push_back(place_order_of(s.handle, s));
    else
      result.legs.push_back(record_of(s, *l));
  }
  return result;
}

template <class Which>
std::vector<leg_id> request_table::legs_where(Which which) const {
  std::vector<leg_id> result;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto& s = slots_[i];
    if (s.handle != 0 && std::any_of(std::begin(s.legs), std::end(s.legs), which))
      result.push_back({s.handle, s.attempt});
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<leg_id> request_table::legs_in(std::uint16_t pool) const {
  return legs_where(
      [=](const leg& l) { return l.pool == pool && (l.state == leg_state::reserved || l.state == leg_state::placed); });
}

std::vector<leg_id> request_table::legs_on(rank_id rank, rank_epoch epoch) const {
  return legs_where([=](const leg& l) {
    return l.pool == rank.pool && l.rank == rank.rank && l.epoch == epoch && l.state == leg_state::placed;
  });
}

std::vector<request_row> request_table::rows(timestamp now, std::size_t limit) const {
  std::vector<request_row> result;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto& s = slots_[i];
    if (result.size() >= limit)
      break;
    if (s.handle == 0)
      continue;
    request_row row;
    row.rid = s.request->rid;
    row.sample = s.sample;
    row.attempt = s.attempt;
    row.prompt_tokens = s.request->input_ids.size();
    row.completion_tokens = s.next_index;
    row.age_s = to_seconds(now - s.received_at);
    const auto& l = s.legs[0];
    row.stage = l.state == leg_state::placing || l.state == leg_state::none ? "placing"
                : l.state == leg_state::reserved                            ? "reserved"
                : s.next_index == 0                                         ? "prefilling"
                                                                            : "streaming";
    if (l.state != leg_state::placing && l.state != leg_state::none)
      row.rank = rank_id{l.pool, l.rank};
    const auto& p = s.legs[1];
    if (p.state != leg_state::placing && p.state != leg_state::none)
      row.prefill_rank = rank_id{p.pool, p.rank};
    result.push_back(std::move(row));
  }
  return result;
}

} // namespace rankwise::core
