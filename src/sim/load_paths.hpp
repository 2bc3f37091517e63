#pragma once

#include "sim/simulation_options.hpp"

#include <string_view>

namespace rankwise::sim {

/// How a policy's own project learns the load of its ranks; Rankwise's own policies get `ours`.
///  * SGLang: the engine writes a snapshot at every prefill and every 15 decode steps, which counts the prompts that
///    wait; read at most every 20 ms.
///  * vLLM: counts are pushed 100 ms after a change.
///  * Dynamo, smg's servicer, hashing: nothing.
///  * smg's gateway: the worker's pushed load (its poll of 10 s would be worse); llm-d: a scrape every 50 ms.
[[nodiscard]] inline load_path_options load_path_of(std::string_view policy, const load_path_options& ours) {
  auto path = ours;
  using std::chrono::milliseconds;
  if (policy == "total_requests" || policy == "total_tokens" || policy == "total_tokens_uncharged") {
    path.counts_waiting_tokens = true;
    path.on_prefill = true;
    path.every_steps = 15;
    path.period = milliseconds{20};
  } else if (policy == "vllm" || policy == "vllm_counts") {
    path.period = milliseconds{100};
    path.delay += milliseconds{50};
  } else if (policy == "dynamo" || policy == "smg_servicer" || policy == "prefix_hash" || policy == "round_robin" ||
             policy == "random") {
    path.every_steps = 0;
  } else if (policy == "smg_least_load" || policy == "smg_power_of_two" || policy == "llm_d") {
    path.period = milliseconds{50};
    path.delay += milliseconds{25};
  }
  return path;
}

} // namespace rankwise::sim
