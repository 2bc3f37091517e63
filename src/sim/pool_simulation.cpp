#include "sim/pool_simulation.hpp"

#include "core/placement/policies/policy_around.hpp"
#include "core/placement/waiting_room.hpp"
#include "sim/lockstep_group.hpp"
#include "sim/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <queue>
#include <stdexcept>
#include <utility>
#include <xxhash.h>

namespace rankwise::sim {

using core::duration;
using core::timestamp;

std::string_view to_string(pool_shape s) noexcept {
  switch (s) {
  case pool_shape::unified:
    return "unified";
  case pool_shape::decode:
    return "decode";
  case pool_shape::pair:
    return "pd";
  }
  return "unknown";
}

// -- gaps
// ---------------------------------------------------------------------------------------------------------------

namespace {

constexpr unsigned gap_sub_bits = 6;

std::size_t gap_bucket(std::uint64_t ns) noexcept {
  if (ns < (1U << gap_sub_bits))
    return ns;
  const auto exponent = static_cast<unsigned>(std::bit_width(ns)) - 1 - gap_sub_bits;
  return (std::size_t{exponent} << gap_sub_bits) + (ns >> exponent);
}

double gap_bucket_end_s(std::size_t bucket) noexcept {
  if (bucket < (2U << gap_sub_bits))
    return static_cast<double>(bucket + 1) * 1e-9;
  const auto exponent = (bucket >> gap_sub_bits) - 1;
  const auto mantissa = bucket - (exponent << gap_sub_bits);
  return std::ldexp(static_cast<double>(mantissa + 1), static_cast<int>(exponent)) * 1e-9;
}

} // namespace

void gap_histogram::add(duration gap, std::uint64_t count) {
  const auto bucket = gap_bucket(static_cast<std::uint64_t>(std::max<duration::rep>(gap.count(), 0)));
  if (bucket >= counts_.size())
    counts_.resize(bucket + 1);
  counts_[bucket] += count;
  count_ += count;
  sum_s_ += core::to_seconds(gap) * static_cast<double>(count);
}

double gap_histogram::quantile_s(double q) const {
  if (count_ == 0)
    return std::numeric_limits<double>::quiet_NaN();
  const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(count_ - 1));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen > wanted)
      return gap_bucket_end_s(i);
  }
  return gap_bucket_end_s(counts_.size() - 1);
}

double gap_histogram::mean_s() const {
  return count_ == 0 ? std::numeric_limits<double>::quiet_NaN() : sum_s_ / static_cast<double>(count_);
}

std::vector<std::pair<double, std::uint64_t>> gap_histogram::buckets() const {
  std::vector<std::pair<double, std::uint64_t>> result;
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] > 0)
      result.emplace_back(gap_bucket_end_s(i), counts_[i]);
  return result;
}

// -- the run
// ------------------------------------------------------------------------------------------------------------

namespace {

constexpr core::rank_epoch first_epoch = 1;
constexpr timestamp never = timestamp::max();

double seconds(timestamp at) noexcept {
  return core::to_seconds(at.time_since_epoch());
}

timestamp at_seconds(double s) noexcept {
  return timestamp{} + duration{std::llround(s * 1e9)};
}

/// Gives a policy the true state of every rank instead of what a controller knows: what the rule would do if nothing
/// had to be learned, and no report were late.
class oracle final : public core::policy_around {
 public:
  oracle(std::unique_ptr<core::policy> rule, const std::vector<std::unique_ptr<engine_rank_model>>& ranks,
         const std::vector<std::uint64_t>& undelivered_tokens, const std::vector<std::uint32_t>& undelivered)
      : policy_around(std::move(rule)), ranks_(ranks), undelivered_tokens_(undelivered_tokens),
        undelivered_(undelivered) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "oracle"; }
  [[nodiscard]] std::optional<core::choice> choose(std::span<const core::rank_view> ranks,
                                                   const core::placement_request& request) override {
    views_.assign(ranks.begin(), ranks.end());
    for (auto& v : views_) {
      const auto& rank = *ranks_[v.rank];
      const auto load = rank.load();
      const auto on_the_way = undelivered_tokens_[v.rank];
      v.requests = load.num_running + load.num_waiting + undelivered_[v.rank];
      v.prefill_tokens = v.work_tokens = rank.tokens_to_compute() + on_the_way;
      v.prefilling = std::min(v.prefilling, v.requests);
      v.tokens = load.kv_used_tokens + rank.waiting_tokens() + on_the_way;
    }
    return rule_->choose(views_, request);
  }

 private:
  const std::vector<std::unique_ptr<engine_rank_model>>& ranks_;
  const std::vector<std::uint64_t>& undelivered_tokens_;
  const std::vector<std::uint32_t>& undelivered_;
};

class run {
 public:
  run(const workload& load, const simulation_options& options);
  simulation_result go();

 private:
  enum class kind : std::uint8_t {
    arrival,   ///< a = request
    deliver,   ///< a = request; b = side + 2 x attempt: its leg reaches the engine
    engine,    ///< a = side, b = rank (or 0 of a lockstep group)
    progress,  ///< a = index into progress_, b = front
    report,    ///< a = index into reports_
    kv_asked,  ///< a = request, b = attempt: a decode rank's question reaches the prefill rank
    kv_answer, ///< a = request, b = ready + 2 x attempt
    happening, ///< a = index
    detected,  ///< a = side, b = rank: it has been frozen for so long
    sample,
    tick,
  };
  struct event {
    timestamp at;
    std::uint64_t sequence;
    kind what;
    std::uint32_t a;
    std::uint32_t b;
    bool operator>(const event& other) const noexcept {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  /// The ranks of one pool: of the unified or decode pool (0), or the prefill pool of a pair (1).
  struct side {
    core::pool_role role = core::pool_role::unified;
    std::vector<std::unique_ptr<engine_rank_model>> ranks;
    std::optional<lockstep_group> group;
    std::vector<rank_outputs> outputs;
    std::vector<timestamp> scheduled; ///< of the event that is queued for the rank
    std::vector<bool> alive;
    std::vector<bool> draining;
    std::vector<timestamp> frozen_since; ///< never: it is not
    std::vector<core::rank_epoch> epochs;
    std::vector<timestamp> sampled_at;
    std::vector<std::uint64_t> sampled_step;
    std::vector<std::uint64_t> report_sequence;
    std::vector<std::uint64_t> work;               ///< prompt tokens computed
    std::vector<std::uint64_t> undelivered_tokens; ///< placed, on the way to the engine
    std::vector<std::uint32_t> undelivered;
  };
  struct front {
    std::vector<std::unique_ptr<core::pool_controller>> pools; ///< by side
    core::waiting_room held;                                   ///< of the side that prefills, or the only one
    std::vector<std::vector<std::uint64_t>> generated;         ///< by side and rank
    explicit front(const core::pool_options& pool)
        : held(pool.waiting_requests_max, pool.waiting_time_max, pool.waiting_order) {}
  };
  struct request_state {
    timestamp last_token = never;
    std::vector<std::uint64_t> blocks; ///< for the engine; the policy sees them too
    std::uint16_t rank[2] = {0, 0};
    core::rank_epoch epoch[2] = {0, 0};
    std::uint32_t attempt = 0;
    std::uint32_t counted = 0; ///< of its tokens, in front::generated
    bool ended[2] = {false, false};
    bool placed[2] = {false, false};
    bool on_the_way[2] = {false, false}; ///< to its engine
  };
  struct pending_progress {
    std::uint32_t side = 0;
    core::batch_progress progress;
  };
  struct pending_report {
    std::uint32_t side = 0;
    core::load_report report;
  };

  void push(timestamp at, kind what, std::uint32_t a = 0, std::uint32_t b = 0) {
    events_.push({at, ++sequence_, what, a, b});
  }
  void note(std::uint64_t what, std::uint64_t a, std::uint64_t b) {
    const std::uint64_t words[] = {what, a, b, static_cast<std::uint64_t>(now_.time_since_epoch().count())};
    result_.event_hash = XXH3_64bits_withSeed(words, sizeof words, result_.event_hash);
  }
  [[nodiscard]] std::uint32_t front_of(std::uint32_t request) const noexcept {
    return request % static_cast<std::uint32_t>(fronts_.size());
  }
  [[nodiscard]] std::uint32_t first_side() const noexcept { return sides_.size() == 2 ? 1 : 0; }

  /// What an engine calls a leg. Outputs of an attempt that was given up mean nothing.
  [[nodiscard]] std::uint64_t number_of(std::uint32_t request) const {
    return std::uint64_t{states_[request].attempt} << 32 | request;
  }
  [[nodiscard]] bool is_current(std::uint64_t number) const {
    return number >> 32 == states_[static_cast<std::uint32_t>(number)].attempt;
  }
  [[nodiscard]] std::string rid_of(std::uint32_t request) const {
    return std::to_string(request + 1) + "~" + std::to_string(states_[request].attempt);
  }
  [[nodiscard]] std::int64_t room_of(std::uint32_t request) const {
    return static_cast<std::int64_t>(request) * 16 + states_[request].attempt % 16;
  }
  [[nodiscard]] engine_rank_options engine_of(const side& s) const;
  void open(std::uint32_t side_index, std::uint16_t rank);
  core::leg_request leg_of(std::uint32_t request, bool may_wait) const;
  bool place(std::uint32_t request, bool may_wait);
  bool place_leg(std::uint32_t request, std::uint32_t side_index, bool may_wait, bool& waits);
  void arrive(std::uint32_t request);
  void queue_arrival(std::size_t from);
  void let_followers_come(std::uint32_t request);
  void bind_held(front& f);
  void end_way(std::uint32_t request, std::uint32_t side_index);
  void deliver(std::uint32_t request, std::uint32_t side_index);
  void drive(std::uint32_t side_index, std::uint32_t rank);
  void schedule(std::uint32_t side_index, std::uint32_t rank);
  void record_step(const engine_rank_model& rank, std::uint64_t steps_before);
  void take_outputs(std::uint32_t side_index, std::uint16_t rank);
  void sample_load(std::uint32_t side_index, std::uint16_t rank, bool prefilled);
  void take_progress(std::uint32_t index, std::uint32_t front_index);
  void end_request(std::uint32_t request, bool failed);
  void lose_rank(std::uint32_t side_index, std::uint16_t rank);
  void give_up_decode_leg(front& f, std::uint32_t request);
  void give_up_prefill_leg(front& f, std::uint32_t request);
  void happen(const rank_happening& h);
  void sample_series();

  const workload& load_;
  request_followers followers_;
  simulation_options options_;
  random_source random_;
  timestamp now_{};
  std::uint64_t sequence_ = 0;
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
  std::vector<side> sides_;
  std::vector<std::unique_ptr<front>> fronts_;
  std::vector<request_state> states_;
  std::vector<pending_progress> progress_;
  std::vector<std::uint32_t> progress_free_;
  std::vector<pending_report> reports_;
  std::vector<std::uint32_t> reports_free_;
  std::vector<std::uint32_t> progress_of_front_; ///< scratch: index + 1 of the progress of each front in one step
  std::vector<std::uint64_t> steps_before_;      ///< scratch: of the ranks of a lockstep group
  std::uint64_t open_requests_ = 0;
  std::uint64_t arrived_ = 0;
  double kv_ratio_sum_ = 0;
  std::uint64_t kv_ratio_count_ = 0;
  simulation_result result_;
};

run::run(const workload& load, const simulation_options& options)
    : load_(load), followers_(load), options_(options), random_(options.seed) {
  const bool pair = options_.shape == pool_shape::pair;
  if (options_.prefill_ranks == 0)
    options_.prefill_ranks = options_.ranks;
  if (options_.max_new_tokens == 0)
    for (const auto& r : load.requests)
      options_.max_new_tokens = std::max(options_.max_new_tokens, r.output_tokens);
  sides_.resize(pair ? 2 : 1);
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    auto& s = sides_[i];
    s.role = options_.shape == pool_shape::unified ? core::pool_role::unified
             : i == 0                              ? core::pool_role::decode
                                                   : core::pool_role::prefill;
    const std::size_t count = i == 0 ? options_.ranks : options_.prefill_ranks;
    const auto engine = engine_of(s);
    for (std::size_t rank = 0; rank < count; ++rank)
      s.ranks.push_back(std::make_unique<engine_rank_model>(engine, options_.seed * 1000 + i * 100'000 + rank));
    if (options_.lockstep) {
      std::vector<engine_rank_model*> all;
      for (const auto& rank : s.ranks)
        all.push_back(rank.get());
      s.group.emplace(std::move(all));
    }
    s.outputs.resize(count);
    s.scheduled.assign(count, never);
    s.alive.assign(count, true);
    s.draining.assign(count, false);
    s.frozen_since.assign(count, never);
    s.epochs.assign(count, first_epoch);
    s.sampled_at.assign(count, timestamp{} - std::chrono::hours{1});
    s.sampled_step.assign(count, 0);
    s.report_sequence.assign(count, 0);
    s.work.assign(count, 0);
    s.undelivered_tokens.assign(count, 0);
    s.undelivered.assign(count, 0);
  }
  for (std::uint32_t i = 0; i < std::max(options_.front_ends, 1U); ++i) {
    fronts_.push_back(std::make_unique<front>(options_.pool));
    auto& f = *fronts_.back();
    for (std::size_t s = 0; s < sides_.size(); ++s) {
      auto pool = options_.pool;
      pool.index = static_cast<std::uint16_t>(s);
      pool.role = sides_[s].role;
      pool.ranks_max = static_cast<std::uint16_t>(std::max<std::size_t>(sides_[s].ranks.size(), 1));
      pool.requests_in_flight_max = std::numeric_limits<std::uint32_t>::max();
      pool.tokens_in_flight_max = std::numeric_limits<std::uint64_t>::max() / 4;
      pool.tuning.seed = options_.seed + i * 7919 + s;
      pool.tuning.lockstep = options_.lockstep;
      auto rule = options_.make_policy ? options_.make_policy(pool.tuning) : nullptr;
      if (options_.oracle) {
        auto tuning = pool.tuning;
        tuning.headroom_progress = false; // the true state has it
        rule = std::make_unique<oracle>(core::make_policy(pool.policy, tuning), sides_[s].ranks,
                                        sides_[s].undelivered_tokens, sides_[s].undelivered);
      }
      f.pools.push_back(std::make_unique<core::pool_controller>(
          pool, std::move(rule),
          options_.recorder ? core::decision_recorders{options_.recorder(i, static_cast<std::uint32_t>(s))}
                            : core::decision_recorders{}));
      f.generated.emplace_back(sides_[s].ranks.size());
    }
  }
  progress_of_front_.resize(fronts_.size());
  states_.resize(load.requests.size());
  result_.requests.resize(load.requests.size());
  result_.placed.resize(options_.ranks);
  result_.series.kv_share.resize(options_.ranks);
  result_.series.queue.resize(sides_[first_side()].ranks.size());
}

engine_rank_options run::engine_of(const side& s) const {
  auto engine = options_.engine;
  engine.role = s.role;
  engine.numbers_only = true;
  engine.pd_wait_s = 1e9; // a simulated client has patience; waiting shows as waiting
  return engine;
}

void run::open(std::uint32_t side_index, std::uint16_t rank) {
  auto& s = sides_[side_index];
  core::rank_announcement up;
  up.rank = {static_cast<std::uint16_t>(side_index), rank};
  up.epoch = s.epochs[rank];
  up.kv_capacity = options_.engine.kv_capacity_tokens;
  up.max_running = options_.engine.running_requests_max;
  up.chunk_tokens = options_.engine.chunk_tokens;
  up.data_parallel_size = static_cast<std::uint32_t>(s.ranks.size());
  up.renewed = up.epoch != first_epoch;
  for (const auto& f : fronts_)
    f->pools[side_index]->rank_up(up, now_);
}

core::leg_request run::leg_of(std::uint32_t request, bool may_wait) const {
  const auto& asked = load_.requests[request];
  core::leg_request leg;
  leg.attempt = states_[request].attempt;
  leg.wanted.handle = request + 1;
  leg.wanted.now = now_;
  leg.wanted.prompt_tokens = asked.input_tokens;
  leg.wanted.max_new_tokens = options_.max_new_tokens;
  leg.wanted.blocks = states_[request].blocks;
  leg.wanted.block_tokens = load_.block_tokens;
  leg.wanted.may_wait = may_wait;
  leg.wanted.priority = asked.priority;
  if (asked.deadline_s)
    leg.wanted.first_token_by = at_seconds(result_.requests[request].arrival_s + *asked.deadline_s);
  return leg;
}

bool run::place_leg(std::uint32_t request, std::uint32_t side_index, bool may_wait, bool& waits) {
  auto& st = states_[request];
  auto answer = fronts_[front_of(request)]->pools[side_index]->place(leg_of(request, may_wait));
  if (std::holds_alternative<core::wait_for_rank>(answer)) {
    waits = true;
    return false;
  }
  const auto* placed = std::get_if<core::placement>(&answer);
  if (placed == nullptr)
    return false;
  st.rank[side_index] = placed->rank.rank;
  st.epoch[side_index] = placed->epoch;
  st.placed[side_index] = true;
  st.ended[side_index] = false;
  (side_index == 0 ? result_.requests[request].rank : result_.requests[request].prefill_rank) = placed->rank.rank;
  if (side_index == 0)
    ++result_.placed[placed->rank.rank];
  note(1 + side_index, request, placed->rank.rank);
  sides_[side_index].undelivered_tokens[placed->rank.rank] += load_.requests[request].input_tokens;
  ++sides_[side_index].undelivered[placed->rank.rank];
  st.on_the_way[side_index] = true;
  push(now_ + options_.placement_delay, kind::deliver, request, side_index + 2 * st.attempt);
  return true;
}

/// Both legs of a pair or none. False: it waits.
bool run::place(std::uint32_t request, bool may_wait) {
  bool waits = false;
  bool done = place_leg(request, first_side(), may_wait, waits);
  if (waits)
    return false;
  if (done && sides_.size() == 2) {
    done = place_leg(request, 0, false, waits);
    if (!done)
      give_up_prefill_leg(*fronts_[front_of(request)], request);
  }
  if (!done) {
    result_.requests[request].refused = true;
    --open_requests_;
    note(9, request, 0);
    let_followers_come(request);
    return true;
  }
  if (result_.requests[request].bound_s < 0)
    result_.requests[request].bound_s = seconds(now_);
  return true;
}

/// The next request at or behind `from` that waits for no other one.
void run::queue_arrival(std::size_t from) {
  while (from < load_.requests.size() && load_.requests[from].after)
    ++from;
  if (from < load_.requests.size())
    push(at_seconds(load_.requests[from].arrival_s), kind::arrival, static_cast<std::uint32_t>(from));
}

/// The client got its answer, or learned that there is none, and thinks.
void run::let_followers_come(std::uint32_t request) {
  for (const auto next : followers_.of(request))
    push(now_ + duration{std::llround(load_.requests[next].think_s * 1e9)}, kind::arrival, next);
}

void run::arrive(std::uint32_t request) {
  ++arrived_;
  ++open_requests_;
  auto& f = *fronts_[front_of(request)];
  auto& st = states_[request];
  const auto& asked = load_.requests[request];
  st.blocks = asked.prefix_blocks;
  if (options_.engine.prefix_block_tokens == 0)
    st.blocks.clear();
  else
    st.blocks.resize(std::min<std::size_t>(st.blocks.size(), asked.input_tokens / load_.block_tokens));
  auto& r = result_.requests[request];
  r.arrival_s = seconds(now_);
  r.input_tokens = asked.input_tokens;
  r.output_tokens = asked.output_tokens;
  r.priority = asked.priority;
  r.deadline_s = asked.deadline_s;
  if (f.held.size() == 0 && place(request, true))
    return;
  core::place_order order;
  order.handle = request + 1;
  const auto by = f.pools[first_side()]->waiting_order(leg_of(request, true).wanted);
  const auto ranks_up = f.pools[first_side()]->ranks_up();
  if (!f.held.enter(order, now_, by, ranks_up)) {
    if (f.held.size() == 0) {
      place(request, false);
      return;
    }
    f.held.squeeze_in(order, now_, by, ranks_up);
    place(static_cast<std::uint32_t>(f.held.take(now_).handle - 1), false);
  }
  bind_held(f);
}

void run::bind_held(front& f) {
  result_.held_most = std::max<std::uint64_t>(result_.held_most, f.held.size());
  while (const auto* next = f.held.next(now_)) {
    const auto request = static_cast<std::uint32_t>(next->handle - 1);
    if (!place(request, true))
      return;
    f.held.leave(request + 1);
  }
}

/// The leg has reached its engine, or never will.
void run::end_way(std::uint32_t request, std::uint32_t side_index) {
  auto& s = sides_[side_index];
  auto& st = states_[request];
  const auto rank = st.rank[side_index];
  const auto tokens = std::uint64_t{load_.requests[request].input_tokens};
  s.undelivered_tokens[rank] -= std::min(s.undelivered_tokens[rank], tokens);
  s.undelivered[rank] -= std::min(s.undelivered[rank], 1U);
  st.on_the_way[side_index] = false;
}

void run::deliver(std::uint32_t request, std::uint32_t side_index) {
  auto& s = sides_[side_index];
  auto& st = states_[request];
  const auto rank = st.rank[side_index];
  end_way(request, side_index);
  if (!s.alive[rank] || st.epoch[side_index] != s.epochs[rank] || !st.placed[side_index])
    return; // lost with the rank meanwhile
  const auto& asked = load_.requests[request];
  rank_request r;
  r.rid = rid_of(request);
  r.number = number_of(request);
  r.input_tokens = std::max(asked.input_tokens, 1U);
  r.blocks = st.blocks;
  r.max_new_tokens = std::max(asked.output_tokens, 1U);
  if (s.role != core::pool_role::unified)
    r.bootstrap = core::bootstrap_info{"", 0, room_of(request)};
  s.ranks[rank]->add(now_, std::move(r), s.outputs[rank]);
  take_outputs(side_index, rank);
  schedule(side_index, rank);
}

void run::schedule(std::uint32_t side_index, std::uint32_t rank) {
  auto& s = sides_[side_index];
  const auto slot = s.group ? 0 : rank;
  auto next = s.group ? s.group->next_event_time() : s.ranks[rank]->next_event_time();
  if (!next)
    return;
  next = std::max(*next, now_);
  if (s.scheduled[slot] <= *next)
    return;
  s.scheduled[slot] = *next;
  push(*next, kind::engine, side_index, slot);
}

void run::drive(std::uint32_t side_index, std::uint32_t slot) {
  auto& s = sides_[side_index];
  if (s.scheduled[slot] != now_)
    return; // an earlier event took its place
  s.scheduled[slot] = never;
  if (s.group) {
    steps_before_.clear();
    for (const auto& rank : s.ranks)
      steps_before_.push_back(rank->steps());
    s.group->step(now_, s.outputs);
    for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
      record_step(*s.ranks[rank], steps_before_[rank]);
      take_outputs(side_index, static_cast<std::uint16_t>(rank));
    }
  } else {
    if (!s.alive[slot])
      return;
    const auto before = s.ranks[slot]->steps();
    s.ranks[slot]->step(now_, s.outputs[slot]);
    record_step(*s.ranks[slot], before);
    take_outputs(side_index, static_cast<std::uint16_t>(slot));
  }
  schedule(side_index, slot);
}

void run::record_step(const engine_rank_model& rank, std::uint64_t steps_before) {
  if (options_.record_steps && rank.steps() != steps_before)
    result_.recorded_steps.push_back(rank.last_step());
}

void run::take_outputs(std::uint32_t side_index, std::uint16_t rank) {
  auto& s = sides_[side_index];
  auto& out = s.outputs[rank];
  if (out.empty() || s.frozen_since[rank] != never)
    return;
  bool prefilled = false;
  std::fill(progress_of_front_.begin(), progress_of_front_.end(), 0U);
  const auto progress_for = [&](std::uint32_t front_index) -> core::batch_progress& {
    auto& index = progress_of_front_[front_index];
    if (index == 0) {
      if (progress_free_.empty()) {
        progress_.emplace_back();
        progress_free_.push_back(static_cast<std::uint32_t>(progress_.size() - 1));
      }
      index = progress_free_.back() + 1;
      progress_free_.pop_back();
      auto& p = progress_[index - 1];
      p.side = side_index;
      p.progress.rank = {static_cast<std::uint16_t>(side_index), rank};
      p.progress.epoch = s.epochs[rank];
      p.progress.first_tokens.clear();
      p.progress.first_cached.clear();
      p.progress.ended.clear();
      p.progress.ended_tokens.clear();
      p.progress.errors = 0;
    }
    return progress_[index - 1].progress;
  };
  const bool delivers = side_index == 0; // the prefill leg's token is not the client's
  for (const auto& item : out.progress) {
    if (!is_current(item.number))
      continue;
    const auto request = static_cast<std::uint32_t>(item.number);
    auto& st = states_[request];
    auto& r = result_.requests[request];
    auto& p = progress_for(front_of(request));
    if (delivers) {
      auto& generated = fronts_[front_of(request)]->generated[0][rank];
      generated += item.generated - st.counted;
      st.counted = item.generated;
      if (st.last_token == never) {
        p.first_tokens.push_back(request + 1);
        p.first_cached.push_back(item.cached);
        prefilled = true;
        if (r.first_token_s < 0) {
          r.first_token_s = seconds(now_);
          if (sides_.size() == 1)
            r.cached = item.cached;
        }
        s.work[rank] += s.role == core::pool_role::unified ? r.input_tokens - item.cached : 0;
        note(3, request, rank);
      } else {
        result_.gaps.add(now_ - st.last_token);
      }
      st.last_token = now_;
      r.generated = item.generated;
    }
    if (item.finish != core::finish_reason::none) {
      p.ended.push_back(request + 1);
      p.ended_tokens.push_back(delivers ? item.generated : 0);
      st.ended[side_index] = true;
      if (delivers) {
        fronts_[front_of(request)]->generated[0][rank] -= st.counted;
        end_request(request, item.finish == core::finish_reason::abort);
      } else {
        prefilled = true;
        r.cached = item.cached;
        s.work[rank] += r.input_tokens - item.cached;
      }
    }
  }
  for (const auto& abort : out.aborts) {
    if (!is_current(abort.number))
      continue;
    const auto request = static_cast<std::uint32_t>(abort.number);
    auto& p = progress_for(front_of(request));
    p.ended.push_back(request + 1);
    p.ended_tokens.push_back(0);
    ++p.errors;
    if (!states_[request].ended[side_index] && side_index == 0) {
      fronts_[front_of(request)]->generated[0][rank] -= states_[request].counted;
      end_request(request, true);
    }
    states_[request].ended[side_index] = true;
  }
  for (std::uint32_t i = 0; i < progress_of_front_.size(); ++i) {
    if (progress_of_front_[i] == 0)
      continue;
    auto& p = progress_[progress_of_front_[i] - 1];
    p.progress.generated_tokens = fronts_[i]->generated[side_index][rank];
    push(now_ + options_.output_delay, kind::progress, progress_of_front_[i] - 1, i);
  }
  for (const auto& query : out.queries)
    push(now_, kind::kv_asked, static_cast<std::uint32_t>(query.number),
         static_cast<std::uint32_t>(query.number >> 32));
  for (const auto& answer : out.answers)
    push(now_, kind::kv_answer, static_cast<std::uint32_t>(answer.query),
         (answer.ready ? 1U : 0U) + 2 * static_cast<std::uint32_t>(answer.query >> 32));
  out.clear();
  sample_load(side_index, rank, prefilled);
}

void run::sample_load(std::uint32_t side_index, std::uint16_t rank, bool prefilled) {
  auto& s = sides_[side_index];
  const auto& path = options_.load_path;
  if (path.every_steps == 0 || path.silent_rank == rank)
    return;
  const auto steps = s.ranks[rank]->steps();
  const bool due = now_ - s.sampled_at[rank] >= path.period && steps - s.sampled_step[rank] >= path.every_steps;
  if (!due && !(path.on_prefill && prefilled))
    return;
  s.sampled_at[rank] = now_;
  s.sampled_step[rank] = steps;
  if (path.loss > 0 && random_.uniform() < path.loss)
    return;
  const auto tail = s.ranks[rank]->load();
  auto delay = core::to_seconds(path.delay);
  if (path.jitter > 0)
    delay *= random_.uniform(1 - path.jitter, 1 + path.jitter);
  if (reports_free_.empty()) {
    reports_.emplace_back();
    reports_free_.push_back(static_cast<std::uint32_t>(reports_.size() - 1));
  }
  const auto index = reports_free_.back();
  reports_free_.pop_back();
  auto& p = reports_[index];
  p.side = side_index;
  p.report.rank = {static_cast<std::uint16_t>(side_index), rank};
  p.report.epoch = s.epochs[rank];
  p.report.sequence = ++s.report_sequence[rank];
  p.report.num_running = tail.num_running;
  p.report.num_waiting = tail.num_waiting;
  p.report.kv_used_tokens =
      tail.kv_used_tokens + (path.counts_waiting_tokens ? s.ranks[rank]->waiting_tokens() : std::uint64_t{0});
  p.report.kv_total_tokens = tail.kv_total_tokens;
  push(now_ + duration{std::llround(delay * 1e9)}, kind::report, index);
}

void run::take_progress(std::uint32_t index, std::uint32_t front_index) {
  auto& f = *fronts_[front_index];
  auto& p = progress_[index];
  if (p.progress.epoch == sides_[p.side].epochs[p.progress.rank.rank]) {
    f.pools[p.side]->progress(p.progress, now_);
    // The prefill charge goes with the decode leg's first token.
    if (p.side == 0 && sides_.size() == 2)
      for (const auto handle : p.progress.first_tokens)
        f.pools[1]->release(handle, now_);
  }
  progress_free_.push_back(index);
  bind_held(f);
}

void run::end_request(std::uint32_t request, bool failed) {
  auto& r = result_.requests[request];
  if (r.end_s >= 0)
    return;
  r.end_s = seconds(now_);
  r.failed = failed;
  result_.makespan_s = std::max(result_.makespan_s, r.end_s);
  --open_requests_;
  note(failed ? 5 : 4, request, r.generated);
  let_followers_come(request);
}

/// The request's prefill rank is gone: its decode leg, which waits for that KV, goes with it.
void run::give_up_decode_leg(front& f, std::uint32_t request) {
  auto& st = states_[request];
  f.pools[0]->end(request + 1, now_);
  const auto rank = st.rank[0];
  const auto rid = rid_of(request);
  ++st.attempt; // what the engine still says of it is not heard
  sides_[0].ranks[rank]->abort(now_, rid, sides_[0].outputs[rank]);
  take_outputs(0, rank);
  schedule(0, rank);
}

/// The request's decode rank is gone, or there was none to be had: its prefill leg, whose KV nobody wants, goes with
/// it.
void run::give_up_prefill_leg(front& f, std::uint32_t request) {
  auto& s = sides_[1];
  auto& st = states_[request];
  const auto rank = st.rank[1];
  const auto rid = rid_of(request);
  // What its engine said and the controller has not heard must not end the leg that comes instead.
  for (auto& p : progress_) {
    auto& ended = p.progress.ended;
    const auto found = std::find(ended.begin(), ended.end(), core::request_handle{request + 1});
    if (p.side != 1 || found == ended.end())
      continue;
    p.progress.ended_tokens.erase(p.progress.ended_tokens.begin() + (found - ended.begin()));
    ended.erase(found);
  }
  f.pools[1]->end(request + 1, now_);
  ++st.attempt; // what the engine still says of it is not heard
  if (st.on_the_way[1])
    end_way(request, 1);
  s.ranks[rank]->abort(now_, rid, s.outputs[rank]);
  take_outputs(1, rank);
  schedule(1, rank);
}

/// Its requests without a token move to another rank, the others are lost.
void run::lose_rank(std::uint32_t side_index, std::uint16_t rank) {
  auto& s = sides_[side_index];
  s.alive[rank] = false;
  std::vector<std::uint32_t> moved;
  for (const auto& f : fronts_) {
    for (const auto handle :
         f->pools[side_index]->rank_down({static_cast<std::uint16_t>(side_index), rank}, s.epochs[rank])) {
      const auto request = static_cast<std::uint32_t>(handle - 1);
      auto& st = states_[request];
      if (result_.requests[request].end_s >= 0 || st.ended[side_index])
        continue; // it was done, which its controller had not yet heard
      st.placed[side_index] = false;
      if (st.last_token != never) {
        end_request(request, true);
        continue;
      }
      if (sides_.size() == 1)
        ++st.attempt;
      else if (side_index == 1)
        give_up_decode_leg(*f, request);
      else
        give_up_prefill_leg(*f, request);
      moved.push_back(request);
    }
    f->generated[side_index][rank] = 0;
  }
  ++s.epochs[rank];
  // The process is gone with all that it had begun; an idle one stands there until the rank joins again.
  result_.steps += s.ranks[rank]->steps();
  result_.retractions += s.ranks[rank]->retractions();
  s.ranks[rank] = std::make_unique<engine_rank_model>(engine_of(s), options_.seed * 1000 + 77 + rank);
  if (s.group)
    s.group->replace(rank, s.ranks[rank].get());
  s.sampled_step[rank] = 0;
  s.draining[rank] = false;
  if (std::exchange(s.frozen_since[rank], never) != never) {
    s.outputs[rank].clear(); // said to nobody
    if (s.group)
      schedule(side_index, rank); // the others waited for it
  }
  std::sort(moved.begin(), moved.end());
  for (const auto request : moved)
    place(request, false);
}

void run::happen(const rank_happening& h) {
  const auto side_index = h.pool == core::pool_role::decode ? 0U : first_side();
  auto& s = sides_[side_index];
  if (h.rank >= s.ranks.size())
    return;
  switch (h.what) {
  case rank_happening::kind::slows:
    s.ranks[h.rank]->set_slow_factor(h.factor);
    break;
  case rank_happening::kind::dies:
    if (s.alive[h.rank])
      lose_rank(side_index, h.rank);
    break;
  case rank_happening::kind::freezes:
    if (!s.alive[h.rank] || s.frozen_since[h.rank] != never)
      return;
    s.frozen_since[h.rank] = now_;
    s.ranks[h.rank]->freeze();
    push(now_ + options_.freeze_detection, kind::detected, side_index, h.rank);
    break;
  case rank_happening::kind::joins:
    if (s.alive[h.rank] && !s.draining[h.rank])
      return;
    s.alive[h.rank] = true;
    s.draining[h.rank] = false;
    open(side_index, h.rank);
    break;
  case rank_happening::kind::drains:
    if (!s.alive[h.rank])
      return;
    s.draining[h.rank] = true;
    for (const auto& f : fronts_)
      f->pools[side_index]->rank_paused({static_cast<std::uint16_t>(side_index), h.rank}, s.epochs[h.rank],
                                        core::rank_state::draining);
    break;
  }
}

void run::sample_series() {
  auto& series = result_.series;
  series.at_s.push_back(seconds(now_));
  double fullest = 0;
  double sum = 0;
  for (std::size_t rank = 0; rank < sides_[0].ranks.size(); ++rank) {
    const auto tail = sides_[0].ranks[rank]->load();
    const auto share = sides_[0].alive[rank] ? static_cast<double>(tail.kv_used_tokens) /
                                                   static_cast<double>(options_.engine.kv_capacity_tokens)
                                             : 0.0;
    series.kv_share[rank].push_back(share);
    fullest = std::max(fullest, share);
    sum += share;
  }
  for (std::size_t rank = 0; rank < series.queue.size(); ++rank)
    series.queue[rank].push_back(sides_[first_side()].ranks[rank]->load().num_waiting);
  std::size_t held = 0;
  for (const auto& f : fronts_)
    held += f->held.size();
  series.held.push_back(static_cast<double>(held));
  const auto mean = sum / static_cast<double>(sides_[0].ranks.size());
  // Only while requests arrive: the end of a run has ranks with one request left.
  if (mean > 0.01 && arrived_ < load_.requests.size()) {
    kv_ratio_sum_ += fullest / mean;
    ++kv_ratio_count_;
  }
}

simulation_result run::go() {
  for (std::uint32_t s = 0; s < sides_.size(); ++s)
    for (std::size_t rank = 0; rank < sides_[s].ranks.size(); ++rank)
      open(s, static_cast<std::uint16_t>(rank));
  queue_arrival(0);
  for (std::uint32_t i = 0; i < options_.happenings.size(); ++i)
    push(at_seconds(options_.happenings[i].at_s), kind::happening, i);
  if (options_.kv_sample_s > 0)
    push(at_seconds(options_.kv_sample_s), kind::sample);
  constexpr auto tick = std::chrono::milliseconds{250};
  push(timestamp{} + tick, kind::tick);
  const auto limit = options_.time_limit_s > 0 ? at_seconds(options_.time_limit_s) : never;
  while (!events_.empty()) {
    const auto e = events_.top();
    events_.pop();
    if (e.at > limit)
      break;
    now_ = e.at;
    switch (e.what) {
    case kind::arrival:
      if (!load_.requests[e.a].after)
        queue_arrival(e.a + 1);
      arrive(e.a);
      break;
    case kind::deliver:
      if (states_[e.a].attempt == e.b / 2)
        deliver(e.a, e.b % 2);
      break;
    case kind::engine:
      drive(e.a, e.b);
      break;
    case kind::progress:
      take_progress(e.a, e.b);
      break;
    case kind::report: {
      ++result_.reports_delivered;
      auto& p = reports_[e.a];
      p.report.received_at = now_;
      for (const auto& f : fronts_)
        f->pools[p.side]->report(p.report);
      reports_free_.push_back(e.a);
      break;
    }
    case kind::kv_asked: {
      auto& st = states_[e.a];
      if (st.attempt != e.b)
        break;
      if (sides_.size() == 1) { // the KV is there at once
        sides_[0].ranks[st.rank[0]]->kv_arrived(now_, rid_of(e.a));
        schedule(0, st.rank[0]);
        break;
      }
      sides_[1].ranks[st.rank[1]]->query_kv(now_, room_of(e.a), number_of(e.a));
      schedule(1, st.rank[1]);
      break;
    }
    case kind::kv_answer: {
      auto& st = states_[e.a];
      if (st.attempt != e.b / 2)
        break;
      auto& rank = *sides_[0].ranks[st.rank[0]];
      const auto rid = rid_of(e.a);
      if (e.b % 2 != 0)
        rank.kv_arrived(now_, rid);
      else
        rank.kv_failed(now_, rid, "the prefill leg failed", sides_[0].outputs[st.rank[0]]);
      take_outputs(0, st.rank[0]);
      schedule(0, st.rank[0]);
      break;
    }
    case kind::happening:
      happen(options_.happenings[e.a]);
      break;
    case kind::detected: // unless it died and another one froze meanwhile
      if (sides_[e.a].frozen_since[e.b] == now_ - options_.freeze_detection)
        lose_rank(e.a, static_cast<std::uint16_t>(e.b));
      break;
    case kind::sample:
      sample_series();
      if (open_requests_ > 0 || arrived_ < load_.requests.size())
        push(now_ + duration{std::llround(options_.kv_sample_s * 1e9)}, kind::sample);
      break;
    case kind::tick:
      for (const auto& f : fronts_) {
        for (auto& order : f->held.expired(now_))
          place(static_cast<std::uint32_t>(order.handle - 1), false);
        bind_held(*f);
      }
      if (open_requests_ > 0 || arrived_ < load_.requests.size())
        push(now_ + tick, kind::tick);
      break;
    }
  }
  for (const auto& f : fronts_) {
    result_.held_left += f->held.size();
    for (const auto& pool : f->pools)
      result_.charges_left += pool->charge_count();
  }
  for (const auto& s : sides_)
    for (const auto& rank : s.ranks) {
      result_.steps += rank->steps();
      result_.retractions += rank->retractions();
    }
  result_.busiest_to_mean_kv = kv_ratio_count_ == 0 ? 1 : kv_ratio_sum_ / static_cast<double>(kv_ratio_count_);
  const auto& work = sides_[first_side()].work;
  std::uint64_t all = 0;
  std::uint64_t most = 0;
  for (const auto tokens : work) {
    all += tokens;
    most = std::max(most, tokens);
  }
  result_.busiest_to_mean_work =
      all == 0 ? 1 : static_cast<double>(most) * static_cast<double>(work.size()) / static_cast<double>(all);
  std::uint64_t prompts = 0;
  std::uint64_t cached = 0;
  for (const auto& r : result_.requests) {
    prompts += r.input_tokens;
    cached += r.cached;
  }
  result_.prefix_hit_share = prompts == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(prompts);
  return std::move(result_);
}

} // namespace

simulation_result simulate(const workload& load, const simulation_options& options) {
  if (options.ranks == 0)
    throw std::invalid_argument("ranks: a pool has at least one");
  return run{load, options}.go();
}

double idle_ttft_s(const simulation_options& options, std::uint32_t input_tokens) {
  const auto& step = options.engine.step_time;
  const auto delays = core::to_seconds(options.placement_delay);
  const auto chunk = std::max(options.engine.chunk_tokens, 1U);
  double prefill = 0;
  if (options.shape != pool_shape::decode) {
    const auto steps = (input_tokens + chunk - 1) / chunk;
    prefill = steps * step.base_s + input_tokens * step.per_prefill_token_s;
  }
  if (options.shape == pool_shape::unified)
    return delays + prefill;
  const double decode = step.seconds(1, input_tokens, 0);
  if (options.shape == pool_shape::decode)
    return delays + decode;
  return delays + prefill + options.engine.kv_transfer_base_s + options.engine.kv_transfer_per_token_s * input_tokens +
         decode;
}

} // namespace rankwise::sim
