#include "app/sim/sim_setup.hpp"

#include "app/sim/sim_event.hpp"
#include "sim/suite.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdexcept>

namespace rankwise::app {

core::policy_options tuning_of(const sim_options& o) {
  core::policy_options t;
  t.headroom_late_binding = o.late_binding;
  t.headroom_learn = o.learn;
  t.headroom_prefix = o.prefix_affinity;
  t.headroom_progress = o.progress;
  t.headroom_damage_weight = o.damage_weight;
  t.headroom_work_weight = o.work_weight;
  t.headroom_credit_chunks = o.credit_chunks;
  return t;
}

sim::step_time_constants step_time_of(const sim_options& o) {
  return {o.step_base_ms * 1e-3, o.step_per_request_ms * 1e-3, o.step_per_kv_token_us * 1e-6,
          1 / o.prefill_tokens_per_s};
}

sim::simulation_options simulation_of(const sim_options& o, const sim::workload& load) {
  auto s = sim::suite_options(o.pool == "decode" ? sim::pool_shape::decode
                              : o.pool == "pd"   ? sim::pool_shape::pair
                                                 : sim::pool_shape::unified,
                              o.lockstep, o.ranks);
  s.prefill_ranks = o.prefill_ranks;
  s.front_ends = o.front_ends;
  s.seed = o.workload.seed;
  const auto ms = [](double v) { return core::duration{std::llround(v * 1e6)}; };
  s.load_path.period = ms(o.report_ms);
  s.load_path.delay = ms(o.report_delay_ms);
  s.load_path.jitter = o.report_jitter;
  s.load_path.loss = o.report_loss;
  if (o.silent_rank >= 0)
    s.load_path.silent_rank = static_cast<std::uint16_t>(o.silent_rank);
  for (const auto& e : o.events)
    s.happenings.push_back(parse_happening(e, s));
  s.freeze_detection = ms(o.freeze_detection_ms);
  s.engine.kv_capacity_tokens = o.kv_tokens;
  s.engine.running_requests_max = o.max_running;
  s.engine.chunk_tokens = o.chunk_tokens;
  s.engine.prefix_block_tokens = o.prefix_cache ? load.block_tokens : 0;
  s.engine.step_time = step_time_of(o);
  s.record_steps = !o.steps.empty();
  s.pool.tuning = tuning_of(o);
  return s;
}

void check_policies(const std::vector<std::string>& policies) {
  std::vector<std::string> known{"oracle", "oracle_least_kv", "headroom_fcfs"};
  for (const auto name : core::policy_names())
    known.emplace_back(name);
  for (const auto& name : policies)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw std::runtime_error("--policies: \"" + name + "\" is not one of " +
                               fmt::format("{}", fmt::join(known, ", ")));
}

} // namespace rankwise::app
