#include "core/placement/policies/headroom.hpp"

#include "core/placement/policies/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rankwise::core {

namespace {

// What an engine that did not register it is taken to have.
constexpr double kv_capacity_unknown = 1 << 20;
constexpr double max_running_unknown = 256;

constexpr duration shared_for = std::chrono::seconds{60};   // after a report counted requests of others
constexpr duration pace_kept_for = std::chrono::seconds{2}; // reports show others sooner than that

double or_else(double value, double otherwise) noexcept {
  return value > 0 ? value : otherwise;
}

} // namespace

headroom::headroom(const policy_options& options) : options_(options), prefixes_(options.prefix_blocks_max) {}

std::span<const prefix_map::match> headroom::matches_of(const placement_request& request) const {
  return options_.headroom_prefix ? prefixes_.find(request.blocks) : std::span<const prefix_map::match>{};
}

double headroom::cached_on(const placement_request& request, std::uint16_t rank,
                           std::span<const prefix_map::match> matches) const {
  const auto blocks = static_cast<double>(prefix_map::blocks_on(rank, matches));
  return blocks == 0 ? 0 : std::min(blocks * request.block_tokens, static_cast<double>(request.prompt_tokens) - 1);
}

double headroom::work_of(const placement_request& request, std::uint16_t rank,
                         std::span<const prefix_map::match> matches) const {
  return static_cast<double>(request.prompt_tokens) - prefix_trust_ * cached_on(request, rank, matches);
}

namespace {

/// Requests of others on a rank, e.g. of another front end: what its report counts beyond our own. A report is late, so
/// that a few of ours that ended since are no proof.
double foreign(double reported, double ours) noexcept {
  return reported - ours > 2 + 0.15 * ours ? reported - ours : 0;
}

/// KV tokens on the rank: our own, which we know exactly, or fewer where prompts share them; more only where a report
/// counts much more than it can count twice (prompts whose KV is taken, and whose first token was not seen).
double kv_on(const rank_view& rank) noexcept {
  const auto reported = static_cast<double>(rank.tokens);
  const auto ours = static_cast<double>(rank.placed_tokens + rank.generated_tokens);
  const double foreign = reported - ours - static_cast<double>(rank.prefill_tokens);
  return foreign > 0.2 * ours + 16'384 ? ours + foreign : std::min(ours, reported);
}

double decoded_kv_on(const rank_view& rank, const placement_request& request) noexcept {
  return request.needs_prefill ? std::max(kv_on(rank) - static_cast<double>(rank.prefill_tokens), 0.0) : kv_on(rank);
}

double chunk_of(const rank_view& rank) noexcept {
  return chunk_tokens_of(static_cast<double>(rank.chunk_tokens));
}

} // namespace

double headroom::foreign_requests(const rank_view& rank) const noexcept {
  return shared_ ? foreign(static_cast<double>(rank.reported_running) + rank.reported_waiting, rank.requests) : 0;
}

double headroom::foreign_waiting(const rank_view& rank) const noexcept {
  const double beyond = static_cast<double>(rank.reported_waiting) - rank.prefilling;
  return foreign_requests(rank) > 0 ? std::max(beyond, 0.0) : 0;
}

double headroom::decoding_on(const rank_view& rank, const placement_request& request) const noexcept {
  const double ours = request.needs_prefill ? rank.requests - std::min(rank.prefilling, rank.requests) : rank.requests;
  return ours + std::max(foreign_requests(rank) - foreign_waiting(rank), 0.0);
}

double headroom::decode_step_s(const rank_view& rank, const placement_request& request) const {
  return pace_.get().decode_s(decoding_on(rank, request), decoded_kv_on(rank, request)) * slow_factor(rank.rank);
}

/// Prompt tokens of others that stand before a new one. Those that wait are reported; one that is being computed shows
/// by steps that take much longer than our own streams explain.
double headroom::foreign_backlog(const rank_view& rank, const placement_request& request) const {
  if (foreign_requests(rank) <= 0)
    return 0;
  double tokens = foreign_waiting(rank) * mean_prompt_;
  const auto& l = lanes_.find(rank.rank);
  if (rank.prefilling == 0 && l.stepped) {
    const double explained = decode_step_s(rank, request);
    const double longest = std::max(l.last_gap_s, to_seconds(request.now - l.last_step)) - explained;
    if (longest / pace_.get().per_prefill_token_s > 0.05 * chunk_of(rank))
      tokens += mean_prompt_;
  }
  return tokens;
}

/// Prompt tokens that stand before a new one: those placed, less what the steps since the rank began the first of them
/// can have computed. The last tokens of that one stay, until its first output shows that they are done.
double headroom::backlog(const rank_view& rank, const placement_request& request) const {
  const auto work = static_cast<double>(rank.work_tokens) + foreign_backlog(rank, request);
  if (rank.prefilling == 0 || !options_.headroom_progress)
    return work;
  const auto& l = lanes_.find(rank.rank);
  const double chunk = chunk_of(rank);
  const double head = l.prompts.empty() ? work / rank.prefilling : l.prompts.front().work;
  double done = 0;
  if (options_.lockstep || rank.requests > rank.prefilling) { // each output is a step
    done = static_cast<double>(steps_of(l) - l.steps_at_head) * chunk;
  } else {
    const auto& c = pace_.get();
    done = to_seconds(request.now - rank.prefill_since) /
           ((c.base_s + c.per_prefill_token_s * chunk) * slow_factor(rank.rank)) * chunk;
  }
  return work - std::min(done, 0.9 * head);
}

headroom::pool_figures headroom::look_at_pool(std::span<const rank_view> ranks,
                                              const placement_request& request) const {
  pool_figures pool;
  if (!options_.lockstep)
    return pool;
  for (const auto& rank : ranks) {
    pool.decoding += decoding_on(rank, request);
    pool.longest_decode_s = std::max(pool.longest_decode_s, decode_step_s(rank, request));
    if (request.needs_prefill)
      pool.longest_backlog = std::max(pool.longest_backlog, backlog(rank, request));
  }
  return pool;
}

headroom::estimate headroom::look(const rank_view& rank, const placement_request& request, const pool_figures& pool,
                                  double work, double output) const {
  const auto& c = pace_.get();
  const double slow = slow_factor(rank.rank);
  const double chunk = chunk_of(rank);
  const double capacity = or_else(static_cast<double>(rank.kv_capacity), kv_capacity_unknown);
  const double running = or_else(rank.max_running, max_running_unknown);
  const auto prompt = static_cast<double>(request.prompt_tokens);
  const double decoding = decoding_on(rank, request);
  const double per_prefill = c.per_prefill_token_s * slow;
  estimate e;
  e.decode_s = decode_step_s(rank, request);
  const double step = options_.lockstep ? std::max(e.decode_s, pool.longest_decode_s) : e.decode_s;
  if (request.needs_prefill) {
    e.backlog_tokens = backlog(rank, request);
    const double all = e.backlog_tokens + work;
    const double steps = std::ceil(all / chunk);
    // In lockstep the steps of this prompt are as long as the fullest rank's.
    const double prefilled = options_.lockstep ? std::clamp(pool.longest_backlog, all, steps * chunk) : all;
    e.first_token_s = steps * step + per_prefill * prefilled;
    if (rank.requests > 0 || pool.decoding > 0)
      e.first_token_s += 0.5 * step; // of the step that runs
    // Each stream that decodes there waits while the prompt is computed; in lockstep every stream of the pool, but only
    // for what no other rank computes in the same steps.
    const double streams = options_.lockstep ? pool.decoding : decoding;
    const double added = options_.lockstep ? std::max(0.0, all - pool.longest_backlog) : work;
    e.damage_s = per_prefill * added * streams;
    e.work_s = per_prefill * work;
  } else {
    e.first_token_s = 1.5 * step;
  }
  // What must fit is judged by the ledger's estimate, which counts rather too much than too little.
  const auto taken = static_cast<double>(rank.tokens);
  const double room = capacity - taken;
  const double needed = prompt + options_.headroom_output_share * output * (rank.requests + 1.0);
  e.fits = needed <= room && rank.requests < running;
  e.overfull = std::max(0.0, (prompt - room) / capacity);
  if (!e.fits) {
    // It waits until requests that are there end: for what is missing of their KV, of which all comes free in the time
    // of an output. When all have ended there is nothing more to wait for.
    const double held = std::max(taken, 1.0);
    const double missing = std::clamp(needed - room, 0.0, held);
    e.first_token_s += (missing / held + 1 / std::max(1.0, running / 2.0)) * output * e.decode_s;
  }
  return e;
}

double headroom::score(const estimate& e, const rank_view& rank) const {
  const double share = std::clamp(rank.share, 0.01, 1.0);
  // A rank that cannot hold the request is taken only when none can.
  constexpr double does_not_fit_s = 1e6;
  if (e.overfull > 0)
    return does_not_fit_s * (1 + e.overfull);
  return (e.first_token_s + options_.headroom_damage_weight * e.damage_s + options_.headroom_work_weight * e.work_s +
          options_.headroom_decode_weight * e.decode_s) /
         share;
}

std::optional<double> headroom::score_of(const rank_view& rank, const placement_request& request) const {
  const auto matches = matches_of(request);
  const double output = lengths_.expected(request.prompt_tokens, request.max_new_tokens);
  return score(look(rank, request, pool_, work_of(request, rank.rank, matches), output), rank);
}

std::span<const std::uint16_t> headroom::preferred(const placement_request& request) const {
  preferred_.clear();
  if (prefix_trust_ > 0)
    for (const auto& m : matches_of(request))
      preferred_.push_back(m.rank);
  return preferred_;
}

std::optional<waiting_estimate> headroom::waiting_order(const placement_request& request) const {
  if (!options_.headroom_late_binding || !request.needs_prefill)
    return std::nullopt;
  const auto matches = matches_of(request);
  auto work = static_cast<double>(request.prompt_tokens);
  for (const auto& m : matches)
    work = std::min(work, work_of(request, m.rank, matches));
  const double step = mean_step_s_ > 0 ? mean_step_s_ : pace_.get().decode_s(1, work);
  waiting_estimate e;
  e.work_s = work * pace_.get().per_prefill_token_s;
  e.to_end_s = e.work_s + lengths_.expected(request.prompt_tokens, request.max_new_tokens) * step;
  return e;
}

std::optional<choice> headroom::choose(std::span<const rank_view> ranks, const placement_request& request) {
  const auto matches = matches_of(request);
  const double output = lengths_.expected(request.prompt_tokens, request.max_new_tokens);
  pool_ = look_at_pool(ranks, request);
  scores_.resize(ranks.size());
  const auto best = lowest_in_turn(ranks, turn_, [&](const rank_view& rank) {
    const double value = score(look(rank, request, pool_, work_of(request, rank.rank, matches), output), rank);
    scores_[static_cast<std::size_t>(&rank - ranks.data())] = value;
    return value;
  });
  if (!best)
    return best;
  auto result = *best;
  const auto chosen = std::find_if(ranks.begin(), ranks.end(), [&](const auto& r) { return r.rank == result.rank; });
  const double work = work_of(request, result.rank, matches);
  result.cached_tokens = request.prompt_tokens - std::min(request.prompt_tokens, static_cast<std::uint64_t>(work));
  if (options_.headroom_late_binding && request.may_wait && chosen->requests > 0) {
    const auto e = look(*chosen, request, pool_, work, output);
    // What others place between two reports is not seen: each takes its part of the credit only.
    const double credit = options_.headroom_credit_chunks * ours_share_ * chunk_of(*chosen);
    const bool covered = request.needs_prefill && chosen->prefilling > 0 && e.backlog_tokens > credit;
    result.wait = covered || !e.fits;
  }
  return result;
}

void headroom::on_placed(std::uint16_t rank, const placement_request& request) {
  pending_prompt p{request.handle, static_cast<double>(request.prompt_tokens), 0, {}};
  if (options_.headroom_prefix && !request.blocks.empty()) {
    const auto matches = prefixes_.find(request.blocks);
    p.work = work_of(request, rank, matches);
    p.cached = cached_on(request, rank, matches);
    p.blocks.assign(request.blocks.begin(), request.blocks.end());
  }
  mean_prompt_ += 0.01 * (static_cast<double>(request.prompt_tokens) - mean_prompt_);
  auto& l = lanes_[rank];
  if (l.prompts.empty())
    l.steps_at_head = steps_of(l);
  if (request.needs_prefill)
    observer_of(rank).placed(place_of(rank), request.handle, p.work, request.now);
  l.prompts.push_back(std::move(p));
}

void headroom::forget_prompt(const leg_progress& leg, bool prefilled) {
  auto& l = lanes_[leg.rank];
  auto& observer = observer_of(leg.rank);
  if (prefilled)
    learn(observer.prefilled(place_of(leg.rank), leg.handle, leg.at, pace_.get()), l);
  else
    observer.dropped(place_of(leg.rank), leg.handle);
  auto& prompts = l.prompts;
  const auto found =
      std::find_if(prompts.begin(), prompts.end(), [&](const auto& p) { return p.handle == leg.handle; });
  if (found == prompts.end())
    return;
  if (prefilled && !found->blocks.empty()) {
    prefixes_.placed(leg.rank, found->blocks);
    if (found->cached > 0 && leg.cached_tokens) {
      constexpr double weight = 0.05; // of one observation
      const double seen = std::clamp(static_cast<double>(*leg.cached_tokens) / found->cached, 0.0, 1.0);
      prefix_trust_ += weight * (seen - prefix_trust_);
    }
  }
  if (found == prompts.begin())
    l.steps_at_head = steps_of(l);
  prompts.erase(found);
}

void headroom::on_first_token(const leg_progress& leg) {
  forget_prompt(leg, true);
}

void headroom::on_ended(const leg_progress& leg) {
  if (!leg.prefilled)
    forget_prompt(leg, leg.of_prefill_rank); // its prompt is computed, and its KV gone to the decode rank
  if (leg.generated_tokens > 0)
    lengths_.learn(leg.prompt_tokens, leg.generated_tokens);
}

void headroom::uncount_slowness(const lane& l) {
  if (!l.slowness_counted)
    return;
  log_slow_sum_ -= *l.slowness_counted;
  slow_counted_ -= 1;
}

void headroom::forget_slowness() {
  for (auto& l : lanes_) {
    l.log_slow = 0;
    l.slowness_counted.reset();
    l.slow = 1;
  }
  log_slow_sum_ = slow_counted_ = 0;
}

void headroom::observe_slowness(lane& l, double ratio) {
  constexpr double weight = 0.2; // of one observation
  constexpr double noise = 1.3;
  l.log_slow += weight * (std::log(std::clamp(ratio, 0.125, 8.0)) - l.log_slow);
  // Against the others alone: what all have in common is the pace, or both could drift apart without end, the one up
  // and the other down. None of them counts for more than the noise.
  uncount_slowness(l);
  const double others = slow_counted_ > 0 ? log_slow_sum_ / slow_counted_ : l.log_slow;
  l.slowness_counted = std::clamp(l.log_slow, others - std::log(noise), others + std::log(noise));
  log_slow_sum_ += *l.slowness_counted;
  slow_counted_ += 1;
  const double relative = std::exp(l.log_slow - others);
  // Nobody counts as fast: where half of the ranks are slow, nothing would say which half the pace is that of.
  l.slow = relative < noise ? 1 : relative;
}

void headroom::learn(const std::optional<step_seen>& seen, lane& l) {
  if (!seen || !options_.headroom_learn || shared_)
    return;
  double seconds = seen->seconds;
  if (!options_.lockstep) { // where all are as slow as the slowest, nobody can tell which it is
    const auto& c = pace_.get();
    const double predicted =
        seen->steps * c.decode_s(seen->decoding, seen->kv_tokens) + c.per_prefill_token_s * seen->prompt_tokens;
    observe_slowness(l, seconds / std::max(predicted, 1e-6));
    seconds /= l.slow;
  }
  if (seen->decoding > 0)
    pace_.learn_step(seconds, seen->decoding, seen->kv_tokens, seen->prompt_tokens);
  else
    pace_.learn_prefill(seconds, seen->steps * pace_.get().base_s, seen->prompt_tokens);
}

/// A report is late: it may count those of ours that ended since the one before. Only two in a row show others.
void headroom::look_for_others(lane& l, const step_observation& step) {
  if (step.report_sequence == 0 || step.report_sequence == l.report_judged)
    return;
  const double ours = step.requests_before;
  const bool seen = foreign(step.reported_requests, std::max(ours, l.requests_at_report)) > 0;
  if (seen && l.foreign_reported)
    shared_until_ = step.at + shared_for;
  l.foreign_reported = seen;
  constexpr double weight = 0.02; // of one report
  ours_share_ += weight * ((seen ? ours / step.reported_requests : 1) - ours_share_);
  l.requests_at_report = ours;
  l.report_judged = step.report_sequence;
}

void headroom::on_step(const step_observation& step) {
  auto& l = lanes_[step.rank];
  ++l.steps;
  const double gap = to_seconds(step.at - l.last_step);
  // What others have on the rank lengthens its steps, and we do not know that well enough to learn from it. Who has
  // placed something on one rank will do so on all, between two reports.
  look_for_others(l, step);
  const bool was_shared = std::exchange(shared_, step.at < shared_until_);
  if (shared_ && !was_shared) {
    pace_ = pace_kept_ = pace_before_; // since then it may have been learned from steps with prompts of others
    forget_slowness();
  } else if (!shared_ && step.at - pace_kept_at_ > pace_kept_for) {
    pace_before_ = std::exchange(pace_kept_, pace_);
    pace_kept_at_ = step.at;
  }
  const double decoding = step.requests_after - step.prefilling_after;
  const auto decoded_kv = static_cast<double>(step.kv_tokens - std::min(step.kv_tokens, step.prefill_tokens));
  learn(observer_of(step.rank).output(
            place_of(step.rank), step.at,
            {decoding, decoded_kv, static_cast<double>(step.chunk_tokens), step.prefilling_after > 0}, pace_.get()),
        l);
  constexpr double longest_step_s = 60; // longer, and it was no step
  if (l.stepped && l.decoding_after_step > 0 && gap <= longest_step_s) {
    constexpr double weight = 0.01; // of one observation
    mean_step_s_ += (mean_step_s_ > 0 ? weight : 1) * (gap - mean_step_s_);
  }
  l.last_gap_s = l.stepped ? gap : 0;
  l.last_step = step.at;
  l.stepped = true;
  l.decoding_after_step = decoding;
}

void headroom::forget_rank(std::uint16_t rank) {
  if (options_.lockstep)
    lockstep_.closed(rank);
  auto& l = lanes_[rank];
  uncount_slowness(l);
  l = {};
  prefixes_.forget(rank);
}

std::optional<choice> least_kv::choose(std::span<const rank_view> ranks, const placement_request&) {
  return lowest_in_turn(ranks, turn_, [](const rank_view& rank) { return kv_on(rank); });
}

std::optional<double> least_kv::score_of(const rank_view& rank, const placement_request&) const {
  return kv_on(rank);
}

} // namespace rankwise::core
