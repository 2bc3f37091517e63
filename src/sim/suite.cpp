#include "sim/suite.hpp"

#include "sim/load_paths.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <fmt/format.h>
#include <thread>

namespace rankwise::sim {

std::vector<suite_trace> suite_traces(const std::filesystem::path& folder, std::size_t requests_max, std::uint64_t seed,
                                      std::vector<std::string>& missing) {
  struct known {
    const char* name;
    const char* path;
  };
  constexpr std::array traces{known{"mooncake-conversation", "mooncake/conversation_trace.jsonl"},
                              known{"mooncake-synthetic", "mooncake/synthetic_trace.jsonl"},
                              known{"azure-conversation", "azure2023/AzureLLMInferenceTrace_conv.csv"},
                              known{"azure-code", "azure2023/AzureLLMInferenceTrace_code.csv"},
                              known{"servegen-deepseek-r1", "servegen/reason/deepseek-r1"}};
  std::vector<suite_trace> result;
  for (const auto& t : traces) {
    workload_limits limits;
    limits.requests = requests_max;
    auto load = load_workload(folder / t.path, seed, limits);
    if (!load) {
      missing.push_back(std::string{t.name} + ": " + to_string(load.error()));
      continue;
    }
    result.push_back({t.name, std::move(*load)});
  }
  return result;
}

simulation_options suite_options(pool_shape shape, bool lockstep, std::uint16_t ranks) {
  simulation_options o;
  o.shape = shape;
  o.lockstep = lockstep;
  o.ranks = ranks;
  o.engine.prefix_block_tokens = 0;
  o.pool.waiting_requests_max = 1'000'000;
  o.pool.waiting_time_max = std::chrono::hours{1};
  return o;
}

std::vector<scenario> main_scenarios(const std::vector<suite_trace>& traces, const std::vector<double>& utilisations,
                                     const core::policy_options& tuning) {
  std::vector<scenario> result;
  for (const auto& t : traces)
    for (const auto shape : {pool_shape::unified, pool_shape::decode, pool_shape::pair})
      for (const bool lockstep : {false, true}) {
        auto options = suite_options(shape, lockstep);
        options.pool.tuning = tuning;
        const double full = saturation_speed(t.load, options);
        for (const double u : utilisations) {
          scenario s;
          s.name = fmt::format("{} {} {} {:.1f}", t.name, to_string(shape), lockstep ? "lockstep" : "independent", u);
          s.trace = t.name;
          s.options = options;
          s.utilisation = u;
          s.speed = full * u;
          result.push_back(std::move(s));
        }
      }
  return result;
}

void apply_policy(std::string_view policy, simulation_options& o) {
  o.pool.policy = policy;
  if (policy == "oracle" || policy == "oracle_least_kv") {
    o.oracle = true;
    o.pool.policy = policy == "oracle" ? "headroom" : "least_kv";
  } else if (policy == "headroom_fcfs") {
    o.pool.policy = "headroom";
    o.pool.waiting_order = {core::duration{0}, 0, 0, 0, 1, o.pool.waiting_order.patience_max};
  }
}

policy_result run_scenario(const scenario& s, const workload& load, const std::string& policy) {
  workload_limits limits;
  limits.speed = s.speed;
  const auto faster = limited(load, limits);
  auto o = s.options;
  apply_policy(policy, o);
  o.load_path = load_path_of(policy, s.options.load_path);
  const auto result = simulate(faster, o);
  return {policy, summarise(result, o), result.event_hash};
}

void in_parallel(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& each) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < std::max(threads, 1U); ++i)
    workers.emplace_back([&] {
      for (std::size_t at = next.fetch_add(1); at < count; at = next.fetch_add(1))
        each(at);
    });
}

} // namespace rankwise::sim
