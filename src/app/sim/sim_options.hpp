#pragma once

#include "app/replay/replay_command.hpp"
#include "core/base/time.hpp"
#include "core/placement/policy.hpp"
#include "sim/request_classes.hpp"
#include "sim/simulation_options.hpp"
#include "sim/step_time.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace rankwise::app {

/// What the command line of `rankwise sim` says, option by option. What each means, and its unit, is the help text in
/// sim_options.cpp.
struct sim_options {
  workload_choice workload;
  std::string pool = "unified";
  std::uint16_t ranks = 8;
  std::uint16_t prefill_ranks = 0;
  bool lockstep = false;
  bool prefix_cache = false;
  double utilisation = 0;
  std::vector<std::string> policies{"round_robin",    "total_requests", "total_tokens", "vllm",  "dynamo",
                                    "smg_least_load", "llm_d",          "headroom",     "oracle"};
  std::uint32_t front_ends = 1;
  double report_ms = 50;
  double report_delay_ms = 1;
  double report_jitter = 0;
  double report_loss = 0;
  int silent_rank = -1;
  std::vector<std::string> events;
  double freeze_detection_ms = core::to_seconds(sim::simulation_options{}.freeze_detection) * 1e3;
  std::uint64_t kv_tokens = 1 << 20;
  std::uint32_t max_running = 256;
  std::uint32_t chunk_tokens = 8192;
  double step_base_ms = sim::step_time_constants{}.base_s * 1e3;
  double step_per_request_ms = sim::step_time_constants{}.per_request_s * 1e3;
  double step_per_kv_token_us = sim::step_time_constants{}.per_kv_token_s * 1e6;
  double prefill_tokens_per_s = std::round(1 / sim::step_time_constants{}.per_prefill_token_s);
  bool late_binding = true;
  bool learn = true;
  bool prefix_affinity = true;
  bool progress = true;
  double damage_weight = core::policy_options{}.headroom_damage_weight;
  double work_weight = core::policy_options{}.headroom_work_weight;
  double credit_chunks = core::policy_options{}.headroom_credit_chunks;
  sim::request_class_options classes;
  std::string plot;
  std::string json_file;
  std::string decisions;
  std::string decision_log;
  std::string steps;
  std::string fit;
  bool suite = false;
  bool short_form = false;
  std::string traces;
  std::size_t suite_requests = 6000;
  unsigned threads = 0;
};

/// Declares every option of `rankwise sim` on its command; what is given is stored in `o`, which must outlive
/// `command`.
void add_sim_options(CLI::App& command, sim_options& o);

} // namespace rankwise::app
