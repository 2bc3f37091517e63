#include "sim/engine_rank_model.hpp"

#include "wire/sglang/engine_rid.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace rankwise::sim {

using core::duration;
using core::finish_reason;
using core::pool_role;
using core::timestamp;

namespace {

constexpr std::size_t open_queries_max = 65'536;

std::string in_room(const rank_request& request) {
  return " (room " + std::to_string(request.bootstrap ? request.bootstrap->room : -1) + ")";
}

} // namespace

engine_rank_model::engine_rank_model(engine_rank_options options, std::uint64_t seed)
    : options_(std::move(options)), random_(seed) {}

// -- from outside
// -------------------------------------------------------------------------------------------------------

void engine_rank_model::add(timestamp now, rank_request asked, rank_outputs& out) {
  ++requests_seen_;
  const auto refuse = [&](std::string message, std::int32_t status) {
    out.aborts.push_back({asked.rid, std::move(message), status, asked.number});
  };
  if (options_.faults.fail_all) {
    return refuse("the simulated engine fails every request", 500);
  }
  if (asked.input_tokens == 0) {
    return refuse("input_ids are required on this wire", 400);
  }
  if (asked.input_tokens >= options_.kv_capacity_tokens) {
    return refuse("the prompt of " + std::to_string(asked.input_tokens) + " tokens is longer than the KV capacity of " +
                      std::to_string(options_.kv_capacity_tokens),
                  400);
  }
  if (options_.role != pool_role::unified && !asked.bootstrap) {
    return refuse("a prefill or decode rank needs a bootstrap room", 400);
  }
  if (requests_.contains(asked.rid)) {
    return refuse("a request with this rid is running", 400);
  }
  if (options_.role == pool_role::prefill && rooms_.contains(asked.bootstrap->room)) {
    return refuse("the bootstrap room is taken" + in_room(asked), 400);
  }
  auto owned = std::make_unique<request>();
  request& r = *owned;
  r.asked = std::move(asked);
  r.crc = wire::sglang::rid_crc32(wire::sglang::client_part(r.asked.rid));
  r.asked.max_new_tokens = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(r.asked.max_new_tokens, 1, options_.kv_capacity_tokens - r.asked.input_tokens));
  if (options_.prefix_block_tokens == 0) {
    r.asked.blocks.clear();
  }
  requests_.emplace(r.asked.rid, std::move(owned));
  if (options_.role == pool_role::prefill) {
    rooms_.emplace(r.asked.bootstrap->room, &r);
  } else if (options_.role == pool_role::decode) {
    set_timer(r, now + scaled(options_.pd_wait_s));
  }
  if (!has_work()) {
    ready_since_ = now;
  }
  stalled_ = false;
  waiting_.push_back(&r);
}

void engine_rank_model::abort(timestamp, std::string_view rid, rank_outputs& out) {
  const auto found = requests_.find(std::string(rid));
  if (found == requests_.end()) {
    return;
  }
  request& r = *found->second;
  if (r.at == phase::running) {
    aborts_asked_ += r.abort_asked ? 0 : 1;
    r.abort_asked = true;
  } else {
    fail(r, "Aborted", 0, out);
  }
}

void engine_rank_model::query_kv(timestamp now, std::int64_t room, std::uint64_t query) {
  if (const auto found = rooms_.find(room); found != rooms_.end() && found->second->at == phase::holding_kv) {
    start_transfer(now, *found->second, query);
    return;
  }
  // Too many open questions: the newest waits in vain, which its asker survives.
  if (query_ends_.size() < open_queries_max) {
    const timestamp until = now + scaled(options_.pd_wait_s);
    queries_.insert_or_assign(room, open_query{query, until});
    query_ends_.emplace_back(until, room);
  }
}

void engine_rank_model::kv_arrived(timestamp now, std::string_view rid) {
  const auto found = requests_.find(std::string(rid));
  if (found == requests_.end() || found->second->at != phase::awaiting_kv) {
    return; // it was aborted meanwhile
  }
  if (!has_work()) {
    ready_since_ = now;
  }
  request& r = *found->second;
  --pd_waiting_;
  set_timer(r, std::nullopt);
  stalled_ = false;
  r.at = phase::running;
  running_.push_back(&r);
}

void engine_rank_model::kv_failed(timestamp, std::string_view rid, std::string_view why, rank_outputs& out) {
  const auto found = requests_.find(std::string(rid));
  if (found != requests_.end() && found->second->at == phase::awaiting_kv) {
    fail(*found->second, "KV transfer failed: " + std::string(why) + in_room(found->second->asked), 500, out);
  }
}

void engine_rank_model::flush_cache() {
  cache_.evict(cache_.evictable());
}

wire::sglang::load_tail engine_rank_model::load() const noexcept {
  return {static_cast<std::uint32_t>(running_.size()), static_cast<std::uint32_t>(waiting_.size() + pd_waiting_),
          used_tokens(), options_.kv_capacity_tokens};
}

std::uint64_t engine_rank_model::waiting_tokens() const noexcept {
  std::uint64_t tokens = 0;
  for (const request* r : waiting_)
    tokens += r->asked.input_tokens;
  return tokens;
}

std::uint64_t engine_rank_model::tokens_to_compute() const noexcept {
  std::uint64_t tokens = options_.role == pool_role::decode ? 0 : waiting_tokens();
  for (const request* r : running_)
    tokens += r->to_compute;
  return tokens;
}

// -- time
// ---------------------------------------------------------------------------------------------------------------

bool engine_rank_model::frozen() const noexcept {
  return is_frozen_ ||
         (options_.faults.freeze_after_requests > 0 && requests_seen_ >= options_.faults.freeze_after_requests);
}

bool engine_rank_model::has_work() const noexcept {
  return !running_.empty() || !waiting_.empty();
}

std::optional<timestamp> engine_rank_model::next_timer() const {
  std::optional<timestamp> earliest;
  if (!timers_.empty()) {
    earliest = timers_.begin()->first.first;
  }
  if (!query_ends_.empty()) {
    const timestamp end = query_ends_.front().first;
    earliest = earliest ? std::min(*earliest, end) : end;
  }
  return earliest;
}

std::optional<timestamp> engine_rank_model::next_event_time() const {
  if (frozen()) {
    return std::nullopt;
  }
  auto earliest = next_timer();
  const auto consider = [&](timestamp at) { earliest = earliest ? std::min(*earliest, at) : at; };
  if (step_end_) {
    consider(*step_end_);
  } else if (has_work() && !stalled_) {
    consider(ready_since_);
  }
  return earliest;
}

void engine_rank_model::step(timestamp now, rank_outputs& out) {
  if (frozen()) {
    return;
  }
  expire(now, out);
  timestamp start = now;
  if (step_end_) {
    if (*step_end_ > now) {
      return;
    }
    // A runner that comes late by less than a step does not slow the rank down; one that is later drops the lag.
    start = now - *step_end_ <= step_length_ ? *step_end_ : now;
    finish_step(now, out);
  }
  if (const auto length = plan_step(out)) {
    begin_step(start, start + *length);
  }
}

void engine_rank_model::expire(timestamp now, rank_outputs& out) {
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    request& r = *timers_.begin()->second;
    if (r.at == phase::sending_kv) {
      out.answers.push_back({*r.query, true, {}});
      r.generated = 1;
      emit(r, finish_reason::length, out);
      forget(r);
    } else if (r.at == phase::holding_kv) {
      fail(r, "no decode rank fetched the KV in time" + in_room(r.asked), 500, out);
    } else {
      fail(r, "the KV of the prefill rank did not come in time" + in_room(r.asked), 500, out);
    }
  }
  while (!query_ends_.empty() && query_ends_.front().first <= now) {
    const auto [until, room] = query_ends_.front();
    query_ends_.pop_front();
    const auto open = queries_.find(room);
    if (open != queries_.end() && open->second.until == until) {
      out.answers.push_back({open->second.query, false, "no request with this room was prefilled in time"});
      queries_.erase(open);
    }
  }
}

void engine_rank_model::begin_step(timestamp start, timestamp end) {
  step_end_ = end;
  step_length_ = end - start;
  ++steps_;
}

std::optional<duration> engine_rank_model::plan_step(rank_outputs& out) {
  if (aborts_asked_ > 0) {
    std::erase_if(running_, [&](request* r) {
      if (!r->abort_asked) {
        return false;
      }
      fail_partner(*r, "the prefill request was aborted", out);
      emit(*r, finish_reason::abort, out);
      forget(*r);
      return true;
    });
  }
  admit_waiting(out);
  retract_until_steps_fit();
  std::uint64_t decoding = 0;
  std::uint64_t kv_tokens = 0;
  std::uint32_t budget = options_.chunk_tokens;
  for (request* r : running_) {
    if (r->to_compute == 0) {
      if (free_tokens() == 0) { // all held by requests that wait for their partner; those have time limits
        continue;
      }
      r->in_step = true;
      take_private(*r, 1);
      ++decoding;
      kv_tokens += r->asked.input_tokens + r->generated;
    } else {
      r->chunk = std::min(budget, r->to_compute);
      budget -= r->chunk;
      r->in_step = r->chunk == r->to_compute && r->chunk > 0;
    }
  }
  const std::uint64_t prefilling = options_.chunk_tokens - budget;
  stalled_ = decoding == 0 && prefilling == 0;
  if (stalled_) {
    return std::nullopt;
  }
  double seconds = options_.step_time.seconds(decoding, kv_tokens, prefilling) * options_.faults.slow_factor;
  if (options_.step_jitter > 0) {
    seconds *= random_.uniform(1 - options_.step_jitter, 1 + options_.step_jitter);
  }
  const auto length = std::max(step_min, scaled(seconds));
  last_step_ = {core::to_seconds(length), decoding, kv_tokens, prefilling};
  return length;
}

void engine_rank_model::finish_step(timestamp now, rank_outputs& out) {
  step_end_.reset();
  ready_since_ = now;
  std::erase_if(running_, [&](request* r) {
    if (r->chunk > 0) {
      r->to_compute -= r->chunk;
      r->chunk = 0;
      if (r->to_compute == 0) {
        share_prompt(*r);
      }
    }
    if (!r->in_step) {
      return false;
    }
    r->in_step = false;
    if (options_.role == pool_role::prefill && !r->abort_asked) {
      prefill_done(now, *r);
      return true;
    }
    ++r->generated;
    if (r->abort_asked) {
      fail_partner(*r, "the prefill request was aborted", out);
    }
    const bool done = r->generated >= r->asked.max_new_tokens;
    const auto finish = r->abort_asked ? finish_reason::abort : done ? finish_reason::length : finish_reason::none;
    if (finish != finish_reason::none || r->asked.stream) {
      emit(*r, finish, out);
    }
    if (finish != finish_reason::none) {
      forget(*r);
      return true;
    }
    return false;
  });
}

// -- KV
// -----------------------------------------------------------------------------------------------------------------

duration engine_rank_model::scaled(double seconds) const noexcept {
  return duration(static_cast<std::int64_t>(std::llround(seconds / options_.time_scale * 1e9)));
}

std::uint64_t engine_rank_model::used_tokens() const noexcept {
  return private_tokens_ + cache_.referenced() * options_.prefix_block_tokens;
}

void engine_rank_model::take_private(request& r, std::uint64_t tokens) {
  const std::uint64_t cached = cache_.evictable() * options_.prefix_block_tokens;
  const std::uint64_t unused = free_tokens() - std::min(free_tokens(), cached);
  if (tokens > unused && options_.prefix_block_tokens > 0) {
    cache_.evict((tokens - unused + options_.prefix_block_tokens - 1) / options_.prefix_block_tokens);
  }
  r.private_tokens += tokens;
  private_tokens_ += tokens;
}

void engine_rank_model::release_kv(request& r) {
  private_tokens_ -= r.private_tokens;
  r.private_tokens = 0;
  cache_.release(r.asked.blocks, r.blocks_held);
  r.blocks_held = 0;
}

/// The prompt is computed: its full blocks become the cache's, for others to share.
void engine_rank_model::share_prompt(request& r) {
  const std::size_t blocks = r.asked.blocks.size();
  if (blocks <= r.blocks_held) {
    return;
  }
  const std::uint64_t moved = (blocks - r.blocks_held) * options_.prefix_block_tokens;
  cache_.insert(r.asked.blocks, r.blocks_held);
  r.blocks_held = blocks;
  assert(r.private_tokens >= moved);
  r.private_tokens -= moved;
  private_tokens_ -= moved;
}

std::uint64_t engine_rank_model::pending_new_tokens() const noexcept {
  std::uint64_t tokens = 0;
  for (const request* r : running_) {
    tokens += r->asked.max_new_tokens - r->generated;
  }
  return tokens;
}

bool engine_rank_model::admit(request& r, rank_outputs& out) {
  // At least one token is computed, or there would be nothing to sample from.
  const std::uint32_t whole = r.asked.input_tokens + r.generated;
  const std::size_t usable = options_.prefix_block_tokens == 0 ? 0 : (whole - 1) / options_.prefix_block_tokens;
  const auto chain = std::span<const std::uint64_t>(r.asked.blocks).first(std::min(usable, r.asked.blocks.size()));
  const std::size_t matched = cache_.match(chain);
  const auto matched_tokens = static_cast<std::uint32_t>(matched * options_.prefix_block_tokens);
  const std::uint64_t revived = cache_.evictable_among(chain, matched) * options_.prefix_block_tokens;
  const std::uint64_t fresh = whole - matched_tokens;
  const auto reserve = static_cast<std::uint64_t>(
      options_.new_token_ratio * static_cast<double>(pending_new_tokens() + r.asked.max_new_tokens - r.generated));
  const bool alone = running_.empty() && pd_waiting_ == 0;
  if (revived + fresh + (alone ? 0 : reserve) > free_tokens()) {
    return false;
  }
  cache_.acquire(chain, matched);
  r.blocks_held = matched;
  take_private(r, fresh);
  if (std::exchange(r.first_admission, false)) {
    r.cached = matched_tokens;
  }
  if (options_.role == pool_role::decode) {
    if (r.kv_swapped) {
      r.at = phase::running;
      running_.push_back(&r);
    } else {
      r.at = phase::awaiting_kv;
      ++pd_waiting_;
      out.queries.push_back({r.asked.rid, r.asked.number, *r.asked.bootstrap});
    }
    return true;
  }
  r.to_compute = static_cast<std::uint32_t>(fresh);
  r.at = phase::running;
  running_.push_back(&r);
  return true;
}

void engine_rank_model::admit_waiting(rank_outputs& out) {
  while (!waiting_.empty() && running_.size() + pd_waiting_ < options_.running_requests_max) {
    request& next = *waiting_.front();
    if (!admit(next, out)) {
      return;
    }
    waiting_.pop_front();
  }
}

void engine_rank_model::retract_until_steps_fit() {
  const auto decoding = [&] {
    return static_cast<std::uint64_t>(
        std::count_if(running_.begin(), running_.end(), [](const request* r) { return r->to_compute == 0; }));
  };
  while (running_.size() > 1 && running_.size() > free_tokens() && decoding() > free_tokens()) {
    request& newest = *running_.back();
    running_.pop_back();
    retract(newest);
  }
}

void engine_rank_model::retract(request& r) {
  ++retractions_;
  release_kv(r);
  r.to_compute = 0;
  r.chunk = 0;
  r.in_step = false;
  r.kv_swapped = true;
  r.at = phase::waiting;
  waiting_.push_front(&r);
}

// -- ends
// ---------------------------------------------------------------------------------------------------------------

void engine_rank_model::emit(request& r, finish_reason finish, rank_outputs& out) {
  if (options_.numbers_only) {
    r.sent = r.generated;
    out.progress.push_back({r.asked.number, r.generated, r.cached, finish});
    return;
  }
  auto& item = out.batch.items.emplace_back();
  item.rid = r.asked.rid;
  item.token_offset = static_cast<std::uint32_t>(out.batch.tokens.size());
  item.token_count = r.generated - r.sent;
  for (; r.sent < r.generated; ++r.sent) {
    out.batch.tokens.push_back(wire::sglang::expected_token(r.crc, r.sent));
  }
  item.finish = finish;
  if (finish == finish_reason::abort) {
    item.finish_message = "Aborted";
  }
  item.prompt_tokens = r.asked.input_tokens;
  item.completion_tokens = r.generated;
  item.cached_tokens = r.cached;
}

void engine_rank_model::prefill_done(timestamp now, request& r) {
  ++pd_waiting_;
  if (const auto asked = queries_.find(r.asked.bootstrap->room); asked != queries_.end()) {
    const std::uint64_t query = asked->second.query;
    close_query(asked);
    start_transfer(now, r, query);
    return;
  }
  r.at = phase::holding_kv;
  set_timer(r, now + scaled(options_.pd_wait_s));
}

void engine_rank_model::start_transfer(timestamp now, request& r, std::uint64_t query) {
  r.at = phase::sending_kv;
  r.query = query;
  set_timer(r, now + scaled(options_.kv_transfer_base_s +
                            options_.kv_transfer_per_token_s * static_cast<double>(r.asked.input_tokens)));
}

void engine_rank_model::fail(request& r, std::string message, std::int32_t status, rank_outputs& out) {
  assert(r.at != phase::running);
  fail_partner(r, message, out);
  out.aborts.push_back({r.asked.rid, std::move(message), status, r.asked.number});
  std::erase(waiting_, &r);
  forget(r);
}

void engine_rank_model::fail_partner(const request& r, std::string_view why, rank_outputs& out) {
  if (options_.role != pool_role::prefill) {
    return;
  }
  if (r.query) {
    out.answers.push_back({*r.query, false, std::string(why)});
  } else if (const auto open = queries_.find(r.asked.bootstrap->room); open != queries_.end()) {
    out.answers.push_back({open->second.query, false, std::string(why)});
    close_query(open);
  }
}

void engine_rank_model::close_query(std::unordered_map<std::int64_t, open_query>::iterator query) {
  queries_.erase(query);
  const auto is_open = [&](const auto& end) {
    const auto open = queries_.find(end.second);
    return open != queries_.end() && open->second.until == end.first;
  };
  while (!query_ends_.empty() && !is_open(query_ends_.front())) {
    query_ends_.pop_front();
  }
}

void engine_rank_model::set_timer(request& r, std::optional<timestamp> at) {
  if (r.timer) {
    timers_.erase(*r.timer);
    r.timer.reset();
  }
  if (at) {
    r.timer.emplace(*at, ++timers_set_);
    timers_.emplace(*r.timer, &r);
  }
}

/// The caller takes it out of running_ or waiting_.
void engine_rank_model::forget(request& r) {
  release_kv(r);
  set_timer(r, std::nullopt);
  if (r.at == phase::awaiting_kv || r.at == phase::holding_kv || r.at == phase::sending_kv) {
    --pd_waiting_;
  }
  if (options_.role == pool_role::prefill) {
    rooms_.erase(r.asked.bootstrap->room);
  }
  stalled_ = false;
  aborts_asked_ -= r.abort_asked ? 1 : 0;
  requests_.erase(requests_.find(r.asked.rid));
}

} // namespace rankwise::sim
