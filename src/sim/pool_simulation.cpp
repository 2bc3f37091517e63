#include "sim/pool_simulation.hpp"

#include "sim/pool/engine_runner.hpp"
#include "sim/pool/kv_handover.hpp"
#include "sim/pool/leg_placement.hpp"
#include "sim/pool/progress_path.hpp"
#include "sim/pool/rank_faults.hpp"
#include "sim/pool/report_path.hpp"
#include "sim/pool/run_figures.hpp"
#include "sim/pool/simulated_clients.hpp"
#include "sim/pool/simulation_world.hpp"
#include "sim/pool/waiting_requests.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace rankwise::sim {

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

namespace {

/// How often the controllers look for requests that waited too long.
constexpr auto tick_period = std::chrono::milliseconds{250};

/// One run of a simulation: its parts, in an order in which each knows only those before it, and the loop of events.
class run {
 public:
  run(const workload& load, const simulation_options& options)
      : world_(load, options), clients_(world_), reports_(world_), progress_(world_),
        engines_(world_, clients_, progress_, reports_), placement_(world_, clients_, progress_, engines_),
        waiting_(world_, placement_), kv_(world_, engines_), faults_(world_, clients_, placement_, engines_),
        figures_(world_) {}

  simulation_result go() {
    queue_first_events();
    const auto limit = world_.options.time_limit_s > 0 ? at_seconds(world_.options.time_limit_s) : never;
    while (!world_.events.empty()) {
      const auto e = world_.events.pop();
      if (e.at > limit)
        break;
      world_.now = e.at;
      take(e);
    }
    figures_.finish();
    return std::move(world_.result);
  }

 private:
  void queue_first_events() {
    faults_.start();
    clients_.start();
    const auto& options = world_.options;
    for (std::uint32_t i = 0; i < options.happenings.size(); ++i)
      world_.events.push(at_seconds(options.happenings[i].at_s), event_kind::happening, i);
    if (options.kv_sample_s > 0)
      world_.events.push(at_seconds(options.kv_sample_s), event_kind::sample);
    world_.events.push(core::timestamp{} + tick_period, event_kind::tick);
  }

  void take(const event& e) {
    switch (e.what) {
    case event_kind::arrival:
      clients_.send(e.a);
      waiting_.enter(e.a);
      break;
    case event_kind::deliver:
      if (world_.requests[e.a].attempt == e.b / 2)
        engines_.deliver(e.a, e.b % 2);
      break;
    case event_kind::engine:
      engines_.drive(e.a, e.b);
      break;
    case event_kind::progress:
      progress_.deliver(e.a, e.b);
      waiting_.place_next(*world_.front_ends[e.b]);
      break;
    case event_kind::report:
      reports_.deliver(e.a);
      break;
    case event_kind::kv_asked:
      kv_.asked(e.a, e.b);
      break;
    case event_kind::kv_answer:
      kv_.answered(e.a, e.b / 2, e.b % 2 != 0);
      break;
    case event_kind::happening:
      faults_.happen(e.a);
      break;
    case event_kind::detected:
      faults_.notice_frozen(e.a, static_cast<std::uint16_t>(e.b));
      break;
    case event_kind::sample:
      figures_.sample();
      if (world_.has_work())
        world_.events.push(world_.now + duration_of(world_.options.kv_sample_s), event_kind::sample);
      break;
    case event_kind::tick:
      waiting_.tick();
      if (world_.has_work())
        world_.events.push(world_.now + tick_period, event_kind::tick);
      break;
    }
  }

  simulation_world world_;
  simulated_clients clients_;
  report_path reports_;
  progress_path progress_;
  engine_runner engines_;
  leg_placement placement_;
  waiting_requests waiting_;
  kv_handover kv_;
  rank_faults faults_;
  run_figures figures_;
};

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
