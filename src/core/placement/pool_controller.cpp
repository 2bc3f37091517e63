#include "core/placement/pool_controller.hpp"

#include "core/base/block_vector.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace rankwise::core {

namespace {

std::string quoted_rank(const pool_options& pool, std::int64_t rank) {
  return "rank " + std::to_string(rank) + " of pool " + pool.name;
}

leg_progress progress_of(request_handle handle, const ledger::charge& c, timestamp now) {
  leg_progress leg;
  leg.rank = c.rank;
  leg.handle = handle;
  leg.prompt_tokens = c.prompt_tokens;
  leg.work_tokens = c.work_tokens;
  leg.prefilled = c.prefilled;
  leg.at = now;
  return leg;
}

} // namespace

std::string_view to_string(placement_rule r) noexcept {
  switch (r) {
  case placement_rule::policy:
    return "policy";
  case placement_rule::data_parallel_rank:
    return "data_parallel_rank";
  case placement_rule::bootstrap_room:
    return "bootstrap_room";
  }
  return "unknown";
}

pool_controller::pool_controller(pool_options options, std::unique_ptr<policy> rule, decision_recorders recorders)
    : options_(std::move(options)), recorders_(std::move(recorders)),
      ledger_(options_.ledger, std::min(options_.requests_in_flight_max, requests_reserved_max)),
      policy_(rule ? std::move(rule) : make_policy(options_.policy, options_.tuning)), ranks_(options_.ranks_max) {
  policy_rule_ = "policy " + options_.policy;
  if (policy_ == nullptr)
    throw std::invalid_argument("policy: no policy is named \"" + options_.policy + "\"");
  views_.reserve(options_.ranks_max);
  random_.seed(options_.tuning.seed);
  tell([&](auto& recorder) { recorder.opened(options_); });
}

void pool_controller::look_at_states() {
  ready_.clear();
  suspect_.clear();
  std::uint32_t size = 1;
  for (std::uint16_t i = 0; i < ranks_.size(); ++i) {
    const auto& e = ranks_[i];
    if (!e.known)
      continue;
    size = std::max({size, i + 1u, e.announced.data_parallel_size});
    if (e.state == rank_state::ready)
      ready_.push_back(i);
    else if (e.state == rank_state::suspect)
      suspect_.push_back(i);
  }
  dp_size_ = std::min<std::uint32_t>(size, options_.ranks_max);
}

std::size_t pool_controller::ranks_up() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const entry& e) { return e.state == rank_state::ready; }));
}

refusal pool_controller::refuse(const leg_request& leg, failure reason, std::string text) {
  ++counts_.refused;
  refusal r;
  r.handle = leg.wanted.handle;
  r.attempt = leg.attempt;
  r.pool = options_.index;
  r.reason = reason;
  r.text = std::move(text);
  return r;
}

double pool_controller::share_of(const entry& e, timestamp now) const {
  double share = e.health.share();
  if (e.announced.renewed && options_.slow_start.count() > 0) {
    const auto since = std::max(now - e.ready_since, duration{0});
    share *=
        std::clamp(static_cast<double>(since.count()) / static_cast<double>(options_.slow_start.count()), 0.1, 1.0);
  }
  return share;
}

void pool_controller::add_view(std::uint16_t rank, timestamp now) {
  const auto& e = ranks_[rank];
  const auto f = ledger_.of(rank, now);
  auto& v = views_.emplace_back();
  v.rank = rank;
  v.requests = f.requests;
  v.tokens = f.tokens;
  v.prefill_tokens = f.prefill_tokens;
  v.work_tokens = f.work_tokens;
  v.prefilling = f.prefilling;
  v.generated_tokens = f.generated_tokens;
  v.placed_tokens = f.placed_tokens;
  v.prefill_since = f.prefill_since;
  v.chunk_tokens = e.announced.chunk_tokens;
  v.kv_capacity = e.announced.kv_capacity;
  v.max_running = e.announced.max_running;
  v.report_age = f.report_age;
  v.stale = f.stale;
  v.reported_running = f.reported_running;
  v.reported_waiting = f.reported_waiting;
  v.share = share_of(e, now);
}

void pool_controller::collect_views(const placement_request& wanted, rank_state state) {
  views_.clear();
  const auto now = wanted.now;
  const auto& ranks = state == rank_state::ready ? ready_ : suspect_;
  if (now < ejected_until_) {
    std::vector<bool> unhealthy;
    for (const auto rank : ranks)
      unhealthy.push_back(ranks_[rank].health.unhealthy(now));
    const auto may = eligible(unhealthy, options_.health.ejected_share_max);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (may[i])
        add_view(ranks[i], now);
    return;
  }
  const auto enough = policy_->ranks_enough();
  if (enough == 0 || ranks.size() <= enough) {
    for (const auto rank : ranks)
      add_view(rank, now);
    return;
  }
  offered_.clear();
  for (std::size_t i = 0; i < enough; ++i)
    offered_.push_back(ranks[random_() % ranks.size()]);
  constexpr std::size_t preferred_max = 8;
  for (const auto rank : policy_->preferred(wanted)) {
    if (offered_.size() >= enough + preferred_max)
      break;
    if (rank < ranks_.size() && ranks_[rank].known && ranks_[rank].state == state)
      offered_.push_back(rank);
  }
  std::sort(offered_.begin(), offered_.end());
  offered_.erase(std::unique(offered_.begin(), offered_.end()), offered_.end());
  for (const auto rank : offered_)
    add_view(rank, now);
}

std::optional<failure> pool_controller::cap_reached(std::uint64_t limit_tokens) const {
  if (ledger_.charge_count() >= options_.requests_in_flight_max)
    return failure::requests_in_flight_max;
  if (ledger_.limit_tokens() + limit_tokens > options_.tokens_in_flight_max)
    return failure::tokens_in_flight_max;
  return std::nullopt;
}

bool pool_controller::has_room(const place_order& order) const {
  return !cap_reached(order.limit_tokens());
}

/// Of a leg that it did not place itself.
void pool_controller::tell_policy(request_handle handle, timestamp now) {
  const auto& c = *ledger_.find(handle);
  placement_request r;
  r.handle = handle;
  r.now = now;
  r.prompt_tokens = c.prompt_tokens;
  r.needs_prefill = options_.role != pool_role::decode;
  policy_->on_placed(c.rank, r);
  if (c.prefilled)
    policy_->on_first_token(progress_of(handle, c, now));
}

bool pool_controller::set_policy(const std::string& name, timestamp now) {
  auto fresh = make_policy(name, options_.tuning);
  if (fresh == nullptr)
    return false;
  tell([&](auto& recorder) { recorder.policy_set(name, now); });
  policy_ = std::move(fresh);
  options_.policy = name;
  policy_rule_ = "policy " + name;
  for (std::uint16_t i = 0; i < ranks_.size(); ++i) {
    for (const auto handle : ledger_.handles_on(i))
      tell_policy(handle, now);
    if (const auto& report = ledger_.newest_report(i))
      policy_->on_report(*report);
  }
  return true;
}

std::vector<placement_record> pool_controller::explain(const std::string& rid) const {
  std::vector<placement_record> result;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const auto& record = records_[(next_record_ + i) % records_.size()];
    if (record.rid == rid)
      result.push_back(record);
  }
  return result;
}

placement_record& pool_controller::open_record(const leg_request& leg) {
  if (records_.size() < placement_records_max)
    records_.emplace_back();
  auto& record = records_[next_record_];
  next_record_ = (next_record_ + 1) % placement_records_max;
  record.rid = leg.rid;
  record.handle = leg.wanted.handle;
  record.attempt = leg.attempt;
  record.sample = leg.sample;
  record.pool = options_.index;
  record.refused = false;
  record.at = leg.wanted.now;
  record.prompt_tokens = leg.wanted.prompt_tokens;
  record.max_new_tokens = leg.wanted.max_new_tokens;
  record.candidates.clear();
  return record;
}

void pool_controller::record_candidates(placement_record& record, const placement_request& wanted,
                                        std::uint16_t chosen) const {
  constexpr std::size_t candidates_max = 64;
  const auto scores = policy_->last_scores();
  record.candidates.reserve(views_.size());
  for (std::size_t i = 0; i < views_.size(); ++i)
    record.candidates.push_back(
        {views_[i], scores.size() == views_.size() ? std::optional{scores[i]} : policy_->score_of(views_[i], wanted)});
  if (record.candidates.size() <= candidates_max)
    return;
  const auto better = [&](const auto& a, const auto& b) {
    return std::pair{a.view.rank != chosen, a.score.value_or(0)} <
           std::pair{b.view.rank != chosen, b.score.value_or(0)};
  };
  std::partial_sort(record.candidates.begin(), record.candidates.begin() + candidates_max, record.candidates.end(),
                    better);
  record.candidates.resize(candidates_max);
}

leg_request pool_controller::leg_of(const place_order& order, timestamp now, bool may_wait) const {
  leg_request leg;
  leg.rid = order.rid;
  leg.attempt = order.attempt;
  leg.sample = order.sample;
  leg.data_parallel_rank = order.data_parallel_rank;
  leg.wanted.handle = order.handle;
  leg.wanted.now = now;
  leg.wanted.prompt_tokens = order.prompt_tokens;
  leg.wanted.max_new_tokens = order.max_new_tokens;
  leg.wanted.may_wait = may_wait;
  leg.wanted.priority = order.priority;
  leg.wanted.deadline = order.deadline;
  leg.wanted.first_token_by = order.first_token_by;
  leg.received_at = order.received_at;
  if (order.bootstrap)
    leg.wanted.bootstrap_room = order.bootstrap->room;
  if (options_.role != pool_role::decode && options_.prefix_block_tokens > 0 && policy_->uses_blocks()) {
    leg.wanted.blocks = order.blocks;
    leg.wanted.block_tokens = options_.prefix_block_tokens;
  }
  return leg;
}

std::variant<placement, refusal, wait_for_rank> pool_controller::place(const place_order& order, timestamp now,
                                                                       bool may_wait) {
  return place(leg_of(order, now, may_wait));
}

std::variant<placement, refusal> pool_controller::place(const place_order& order, timestamp now) {
  auto result = place(order, now, false);
  if (auto* refused = std::get_if<refusal>(&result))
    return std::move(*refused);
  return std::move(std::get<placement>(result));
}

waiting_key pool_controller::waiting_order(const place_order& order, timestamp now) {
  const auto leg = leg_of(order, now, true);
  tell([&](auto& recorder) { recorder.waits(leg); });
  return waiting_order(leg.wanted);
}

void pool_controller::left(request_handle handle, timestamp now) const {
  tell([&](auto& recorder) { recorder.left(handle, now); });
}

refusal pool_controller::displaced(const place_order& order, timestamp now) {
  return no_place_to_wait(order, now,
                          "a request of a higher priority than " + std::to_string(order.priority) +
                              " took this one's place among the " + std::to_string(options_.waiting_requests_max) +
                              " that may wait");
}

refusal pool_controller::crowded_out(const place_order& order, timestamp now) {
  return no_place_to_wait(order, now,
                          "its " + std::to_string(options_.waiting_requests_max) + " places to wait are taken");
}

refusal pool_controller::no_place_to_wait(const place_order& order, timestamp now, const std::string& why) {
  left(order.handle, now);
  leg_request leg; // what a refusal says of it
  leg.wanted.handle = order.handle;
  leg.attempt = order.attempt;
  // There may be room for this one, and none for those before it: they lack tokens then.
  return refuse(leg, cap_reached(order.limit_tokens()).value_or(failure::tokens_in_flight_max),
                "pool " + options_.name + " is full, and " + why);
}

waiting_key pool_controller::waiting_order(placement_request request) const {
  request.needs_prefill = options_.role != pool_role::decode;
  waiting_key key;
  key.priority = request.priority;
  const auto estimate = policy_->waiting_order(request);
  if (!estimate)
    return key;
  key.work_s = estimate->work_s;
  // A deadline that will pass whatever is done gains nothing, and costs those whose deadlines can be kept.
  constexpr double hopeless = 0.8; // of the estimate
  constexpr double prudent = 1.25;
  const auto start_for = [&](const std::optional<timestamp>& by, double needed_s) {
    if (!by || to_seconds(*by - request.now) < hopeless * needed_s)
      return;
    const auto start = *by - from_seconds(prudent * needed_s);
    if (key.latest_start && *key.latest_start <= start)
      return;
    key.latest_start = start;
    key.too_late = *by - from_seconds(hopeless * needed_s);
  };
  start_for(request.first_token_by, estimate->work_s);
  start_for(request.deadline, estimate->to_end_s);
  return key;
}

std::variant<placement, refusal, wait_for_rank> pool_controller::place(const leg_request& leg) {
  std::optional<double> score;
  auto result = decide(leg, score);
  tell([&](auto& recorder) {
    placement_decision d;
    if (const auto* placed = std::get_if<placement>(&result)) {
      d.rank = placed->rank.rank;
      d.epoch = placed->epoch;
      d.score = score;
    } else if (const auto* refused = std::get_if<refusal>(&result)) {
      d.what = placement_decision::kind::refused;
      d.reason = refused->reason;
    } else {
      d.what = placement_decision::kind::waits;
    }
    recorder.decided(leg, d);
  });
  return result;
}

/// `score`: of a placement that the policy chose.
std::variant<placement, refusal, wait_for_rank> pool_controller::decide(const leg_request& leg,
                                                                        std::optional<double>& score) {
  auto wanted = leg.wanted;
  const auto now = wanted.now;
  wanted.dp_size = dp_size();
  wanted.needs_prefill = options_.role != pool_role::decode;
  const auto limit = wanted.prompt_tokens + wanted.max_new_tokens;

  if (ledger_.find(wanted.handle) != nullptr)
    return refuse(leg, failure::duplicate_rid, "handle " + std::to_string(wanted.handle) + " is charged already");
  if (const auto cap = cap_reached(limit))
    return refuse(leg, *cap,
                  *cap == failure::requests_in_flight_max
                      ? "pool " + options_.name + " has " + std::to_string(ledger_.charge_count()) +
                            " requests in flight, requests_in_flight_max is " +
                            std::to_string(options_.requests_in_flight_max)
                      : "pool " + options_.name + " has " + std::to_string(ledger_.limit_tokens()) +
                            " tokens in flight, this request may take " + std::to_string(limit) +
                            ", tokens_in_flight_max is " + std::to_string(options_.tokens_in_flight_max));

  const auto refuse_and_record = [&](failure reason, std::string text) {
    auto& record = open_record(leg);
    record.refused = true;
    record.rule = text;
    return refuse(leg, reason, std::move(text));
  };
  std::optional<choice> best; // by the policy
  std::optional<std::uint16_t> chosen;
  auto rule = placement_rule::policy;
  // A pin speaks of the ranks that decode; a prefill leg is bound by its room alone.
  if (leg.data_parallel_rank && options_.role != pool_role::prefill) {
    const auto pin = *leg.data_parallel_rank;
    if (pin < 0 || static_cast<std::uint32_t>(pin) >= wanted.dp_size)
      return refuse_and_record(failure::invalid_argument, "data_parallel_rank: " + std::to_string(pin) + ", pool " +
                                                              options_.name + " has ranks 0 to " +
                                                              std::to_string(wanted.dp_size - 1));
    const auto& e = ranks_[static_cast<std::size_t>(pin)];
    const bool usable = e.known && (e.state == rank_state::ready || e.state == rank_state::suspect);
    if (usable) {
      chosen = static_cast<std::uint16_t>(pin);
      rule = placement_rule::data_parallel_rank;
    }
    if (!usable && !options_.pin_is_hint)
      return refuse_and_record(failure::pinned_rank_unavailable,
                               "data_parallel_rank: " + quoted_rank(options_, pin) + " is " +
                                   std::string{e.known ? to_string(e.state) : "absent"});
  }
  // A room that a gateway minted is followed on prefill whatever the policy: the decode side looks for it there.
  const bool follow_room = options_.role == pool_role::prefill && wanted.bootstrap_room.has_value();
  if (!chosen && follow_room) {
    const auto rank = static_cast<std::uint16_t>(static_cast<std::uint64_t>(*wanted.bootstrap_room) % wanted.dp_size);
    const auto& e = ranks_[rank];
    if (!e.known || (e.state != rank_state::ready && e.state != rank_state::suspect))
      return refuse_and_record(failure::no_rank_available, "bootstrap_room: " + std::to_string(*wanted.bootstrap_room) +
                                                               " belongs to " + quoted_rank(options_, rank) +
                                                               ", which is " +
                                                               std::string{e.known ? to_string(e.state) : "absent"});
    chosen = rank;
    rule = placement_rule::bootstrap_room;
  }
  if (!chosen) {
    collect_views(wanted, rank_state::ready);
    if (views_.empty())
      collect_views(wanted, rank_state::suspect); // silence alone must not stop a pool
    if (views_.empty())
      return refuse_and_record(failure::no_rank_available, "no rank of pool " + options_.name + " can take work");
    best = policy_->choose(views_, wanted);
    if (!best)
      return refuse_and_record(failure::no_rank_available, "policy " + options_.policy + " names a rank of pool " +
                                                               options_.name + " that cannot take work");
    if (best->wait && wanted.may_wait)
      return wait_for_rank{};
    chosen = best->rank;
  }

  auto& e = ranks_[*chosen];
  auto& record = open_record(leg);
  if (best) {
    record.rule = policy_rule_;
    record_candidates(record, wanted, best->rank);
  } else {
    record.rule = to_string(rule);
  }
  record.rank = *chosen;
  record.epoch = e.announced.epoch;
  ledger::charge c;
  c.rank = *chosen;
  c.epoch = e.announced.epoch;
  c.prompt_tokens = wanted.prompt_tokens;
  c.work_tokens = wanted.prompt_tokens - std::min(wanted.prompt_tokens, best ? best->cached_tokens : 0);
  c.limit_tokens = limit;
  c.attempt = leg.attempt;
  if (!ledger_.add(wanted.handle, c, now)) {
    record.refused = true;
    record.rule = quoted_rank(options_, *chosen) + " is not open";
    return refuse(leg, failure::no_rank_available, record.rule);
  }
  policy_->on_placed(*chosen, wanted);
  if (best && std::isfinite(best->score))
    score = best->score;
  ++e.placements;
  ++counts_.placed;
  ++counts_.placed_by[static_cast<std::size_t>(rule)];

  placement p;
  p.handle = wanted.handle;
  p.attempt = leg.attempt;
  p.rank = {options_.index, *chosen};
  p.epoch = e.announced.epoch;
  p.term = options_.term;
  p.rule = rule;
  p.dp_size = wanted.dp_size;
  p.bootstrap_host = options_.bootstrap_host;
  p.bootstrap_port = options_.bootstrap_port;
  return p;
}

std::vector<request_handle> pool_controller::rank_up(const rank_announcement& rank, timestamp now) {
  tell([&](auto& recorder) { recorder.rank_up(rank, now); });
  if (rank.rank.pool != options_.index || rank.rank.rank >= ranks_.size())
    return {};
  auto& e = ranks_[rank.rank.rank];
  if (e.known && rank.epoch < e.announced.epoch)
    return {};
  const bool same_epoch = e.known && e.announced.epoch == rank.epoch;
  e.known = true;
  e.announced = rank;
  e.state = rank.state;
  look_at_states();
  if (!same_epoch || rank.state != rank_state::drained)
    e.drain_cut = 0;
  if (!same_epoch) {
    e.health.reset();
    e.ready_since = now;
    policy_->on_rank_opened(rank.rank.rank);
  }
  return ledger_.open(rank.rank.rank, rank.epoch);
}

void pool_controller::rank_paused(rank_id rank, rank_epoch epoch, rank_state state) {
  tell([&](auto& recorder) { recorder.rank_paused(rank, epoch, state); });
  if (rank.pool != options_.index || rank.rank >= ranks_.size())
    return;
  auto& e = ranks_[rank.rank];
  if (e.known && e.announced.epoch == epoch && e.state != rank_state::down)
    e.state = state;
  look_at_states();
}

std::vector<request_handle> pool_controller::rank_down(rank_id rank, rank_epoch epoch, rank_state state) {
  tell([&](auto& recorder) { recorder.rank_down(rank, epoch, state); });
  if (rank.pool != options_.index || rank.rank >= ranks_.size())
    return {};
  auto& e = ranks_[rank.rank];
  if (!e.known || e.announced.epoch > epoch)
    return {};
  e.state = state;
  e.known = state != rank_state::removed;
  look_at_states();
  if (!e.known)
    e.ejected_in.reset();
  policy_->on_rank_closed(rank.rank);
  auto dropped = ledger_.close(rank.rank);
  // A drain that ends by itself leaves nothing: what a drained rank still has, its deadline cut.
  if (state == rank_state::drained)
    e.drain_cut = static_cast<std::uint32_t>(dropped.size());
  return dropped;
}

bool pool_controller::progress(const batch_progress& p, timestamp now) {
  tell([&](auto& recorder) { recorder.progress(p, now); });
  step_observation step;
  step.rank = p.rank.rank;
  step.at = now;
  step.requests_before = ledger_.of(p.rank.rank, now).requests;
  for (std::size_t i = 0; i < p.first_tokens.size(); ++i) {
    const auto handle = p.first_tokens[i];
    const auto* c = ledger_.find(handle);
    if (c == nullptr)
      continue;
    auto leg = progress_of(handle, *c, now);
    if (i < p.first_cached.size())
      leg.cached_tokens = p.first_cached[i];
    ledger_.first_token(handle, now);
    policy_->on_first_token(leg);
  }
  for (std::size_t i = 0; i < p.ended.size(); ++i)
    end_charge(p.ended[i], now, i < p.ended_tokens.size() ? p.ended_tokens[i] : 0, true);
  ledger_.set_generated(p.rank.rank, p.epoch, p.owner, p.generated_tokens);
  const auto after = ledger_.of(p.rank.rank, now);
  step.kv_tokens = after.tokens;
  if (p.rank.rank < ranks_.size()) {
    const auto& announced = ranks_[p.rank.rank].announced;
    if (announced.kv_capacity > 0)
      step.kv_tokens = std::min(step.kv_tokens, announced.kv_capacity); // reports may say anything
    step.chunk_tokens = announced.chunk_tokens;
  }
  step.prefill_tokens = after.prefill_tokens;
  step.prefilling_after = options_.role == pool_role::prefill ? after.requests : after.prefilling; // nothing decodes
  step.requests_after = after.requests;
  if (const auto& report = ledger_.newest_report(p.rank.rank); report && !after.stale) {
    step.report_sequence = report->sequence;
    step.reported_requests = report->num_running + report->num_waiting;
  }
  // Parts of one engine batch that went to several owners are one step.
  const bool known_batch = p.rank.rank < ranks_.size() && p.batch != 0 && ranks_[p.rank.rank].newest_batch == p.batch;
  if (!known_batch)
    policy_->on_step(step);
  if (p.rank.rank < ranks_.size())
    ranks_[p.rank.rank].newest_batch = p.batch;
  if (p.ended.empty() || p.rank.rank >= ranks_.size() || ranks_[p.rank.rank].announced.epoch != p.epoch ||
      options_.health.ejected_share_max <= 0)
    return false;
  auto& health = ranks_[p.rank.rank].health;
  const bool before = health.unhealthy(now);
  health.on_ended(static_cast<std::uint32_t>(p.ended.size()) - p.errors, p.errors, now, options_.health);
  if (before || !health.unhealthy(now))
    return false;
  ranks_[p.rank.rank].ejected_in = p.epoch;
  ejected_until_ = std::max(ejected_until_, health.ejected_until());
  return true;
}

std::vector<pool_controller::ejection_end> pool_controller::ejections_over(timestamp now) {
  tell([&](auto& recorder) { recorder.ejections_over(now); });
  std::vector<ejection_end> result;
  for (std::uint16_t i = 0; i < ranks_.size(); ++i) {
    auto& e = ranks_[i];
    if (!e.ejected_in || e.health.unhealthy(now) || !e.known || e.state != rank_state::ready)
      continue;
    result.push_back({i, e.announced.epoch, e.announced.epoch != *e.ejected_in});
    e.ejected_in.reset();
  }
  return result;
}

bool pool_controller::release(request_handle handle, timestamp now) {
  tell([&](auto& recorder) { recorder.released(handle, now); });
  return ledger_.release(handle, now);
}

std::optional<ledger::charge> pool_controller::end(const end_order& order, timestamp now) {
  const auto* charged = ledger_.find(order.handle);
  if (charged != nullptr && charged->attempt == order.attempt)
    return end(order.handle, now, order.generated);
  ++counts_.ends_of_unknown_charges;
  return std::nullopt;
}

std::optional<ledger::charge> pool_controller::end(request_handle handle, timestamp now, std::uint32_t generated) {
  tell([&](auto& recorder) { recorder.ended(handle, now, generated); });
  return end_charge(handle, now, generated, false);
}

std::vector<request_handle> pool_controller::owner_gone(owner_id owner, timestamp now) {
  auto handles = ledger_.handles_of(owner);
  for (const auto handle : handles)
    end(handle, now);
  tell([&](auto& recorder) { recorder.owner_gone(owner, now); });
  ledger_.forget_owner(owner);
  return handles;
}

std::optional<ledger::charge> pool_controller::end_charge(request_handle handle, timestamp now, std::uint32_t generated,
                                                          bool by_engine) {
  auto ended = ledger_.end(handle, now);
  if (ended) {
    auto leg = progress_of(handle, *ended, now);
    leg.generated_tokens = generated;
    // A released one had its first token from the decode leg, before its own engine's last word.
    leg.of_prefill_rank = options_.role == pool_role::prefill && (by_engine || ended->released);
    policy_->on_ended(leg);
  }
  ++(ended ? counts_.charges_ended : counts_.ends_of_unknown_charges);
  return ended;
}

report_verdict pool_controller::report(const load_report& r) {
  tell([&](auto& recorder) { recorder.reported(r); });
  const auto verdict = r.rank.pool == options_.index ? ledger_.report(r) : report_verdict::unknown_rank;
  ++counts_.reports[static_cast<std::size_t>(verdict)];
  if (verdict == report_verdict::accepted)
    policy_->on_report(r);
  return verdict;
}

std::vector<request_handle> pool_controller::restore(const std::vector<leg_record>& legs, timestamp now) {
  tell([&](auto& recorder) { recorder.restored(legs, now); });
  std::vector<request_handle> lost;
  for (const auto& leg : legs) {
    ledger::charge c;
    c.rank = leg.rank.rank;
    c.epoch = leg.epoch;
    c.prompt_tokens = leg.prompt_tokens;
    c.work_tokens = c.prompt_tokens; // what its cache had is not known any more
    c.limit_tokens = leg.limit_tokens;
    c.attempt = leg.attempt;
    c.released = leg.released;
    if (c.released)
      c.limit_tokens = 0;
    if (ledger_.find(leg.handle) != nullptr)
      continue;
    if (leg.rank.rank >= ranks_.size() || !ledger_.add(leg.handle, c, now)) {
      lost.push_back(leg.handle);
      continue;
    }
    if (leg.prefilled)
      ledger_.first_token(leg.handle, now);
    tell_policy(leg.handle, now);
  }
  return lost;
}

bool pool_controller::is_prefilled(request_handle handle) const {
  const auto* c = ledger_.find(handle);
  return c != nullptr && c->prefilled;
}

std::optional<std::uint32_t> pool_controller::charged_attempt(request_handle handle) const {
  const auto* c = ledger_.find(handle);
  return c != nullptr ? std::optional{c->attempt} : std::nullopt;
}

std::vector<rank_row> pool_controller::rows(timestamp now) const {
  std::vector<rank_row> result;
  for (std::uint16_t i = 0; i < ranks_.size(); ++i) {
    const auto& e = ranks_[i];
    if (!e.known)
      continue;
    const auto f = ledger_.of(i, now);
    rank_row row;
    row.rank = {options_.index, i};
    row.epoch = e.announced.epoch;
    row.state = e.state;
    row.requests = f.requests;
    row.tokens = f.tokens;
    row.prefill_tokens = f.prefill_tokens;
    row.kv_capacity = e.announced.kv_capacity;
    row.max_running = e.announced.max_running;
    row.placements = e.placements;
    row.share = share_of(e, now);
    row.ejected = e.health.unhealthy(now);
    row.drain_cut = e.drain_cut;
    if (const auto& report = ledger_.newest_report(i)) {
      row.reported = true;
      row.report_age_s = to_seconds(now - report->received_at);
      row.reported_running = report->num_running;
      row.reported_waiting = report->num_waiting;
      row.reported_kv_used = report->kv_used_tokens;
    }
    result.push_back(row);
  }
  return result;
}

} // namespace rankwise::core
