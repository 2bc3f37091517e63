#include "app/engine/engine_command.hpp"

#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>
#include <memory>

namespace rankwise::app {

namespace {

struct parsed_options {
  engine_options engine;
  std::string role = "unified";
  std::string release = "0.5.23";
  std::vector<std::string> faults;
  double step_base_ms = engine_options{}.model.step_time.base_s * 1e3;
  double step_per_request_ms = engine_options{}.model.step_time.per_request_s * 1e3;
  double step_per_kv_token_us = engine_options{}.model.step_time.per_kv_token_s * 1e6;
  double prefill_tokens_per_s = 1 / engine_options{}.model.step_time.per_prefill_token_s;
  double kv_transfer_ms = engine_options{}.model.kv_transfer_base_s * 1e3;
  int fault_rank = -1;
};

void declare_place(CLI::App& command, parsed_options& parsed) {
  engine_options& o = parsed.engine;
  command
      .add_option("--handshake", o.handshake_endpoint, "Endpoint of the node's handshake, e.g. tcp://127.0.0.1:7100")
      ->required();
  command.add_option("--ranks", o.ranks, "How many ranks this process hosts")
      ->transform(whole_number(1, 1024))
      ->capture_default_str();
  command.add_option("--first-rank", o.first_rank, "Number of the first of them")
      ->transform(whole_number(0, 65535))
      ->capture_default_str();
  command
      .add_option("--dp-size", o.data_parallel_size,
                  "Ranks of the engine, as registered; 0 = those of this process, an engine by itself")
      ->transform(whole_number(0, 65535))
      ->capture_default_str();
  command.add_option("--role", parsed.role, "What the ranks do")
      ->check(CLI::IsMember({"unified", "prefill", "decode"}))
      ->capture_default_str();
  command.add_option("--bootstrap-host", o.bootstrap_host, "Prefill: address to listen on")->capture_default_str();
  command.add_option("--bootstrap-port", o.bootstrap_port, "Prefill: rank i listens on this port + i")
      ->transform(whole_number(0, 65535))
      ->capture_default_str();
  command.add_option("--prefill-ranks", o.prefill_ranks, "Decode: a room's KV is on prefill rank room mod this")
      ->transform(whole_number(1, 65535))
      ->capture_default_str();
  command.add_option("--model-name", o.model_name,
                     "What the ranks say that they serve: a name or a folder (default: nothing)");
  command.add_option("--layout", parsed.release, "SGLang release whose struct layouts are registered")
      ->check(CLI::IsMember({"0.5.23", "0.5.21"}))
      ->capture_default_str();
  as_duration(command.add_option("--handshake-wait", o.handshake_wait_s, "Longest wait for the node's INIT"),
              {.least_s = 1e-3})
      ->capture_default_str();
}

void declare_model(CLI::App& command, parsed_options& parsed) {
  sim::engine_rank_options& m = parsed.engine.model;
  command.add_option("--kv-tokens", m.kv_capacity_tokens, "KV capacity of a rank in tokens")
      ->transform(whole_number<std::uint64_t>(1))
      ->capture_default_str();
  command.add_option("--max-running", m.running_requests_max, "Most running requests of a rank")
      ->transform(whole_number<std::uint32_t>(1))
      ->capture_default_str();
  command.add_option("--chunk", m.chunk_tokens, "Prefill tokens of one step")
      ->transform(whole_number<std::uint32_t>(1))
      ->capture_default_str();
  command.add_option("--max-model-len", parsed.engine.max_model_len, "Longest sequence, as registered")
      ->transform(whole_number<std::uint64_t>(1))
      ->capture_default_str();
  command.add_option("--block-tokens", m.prefix_block_tokens, "Tokens of a prefix cache block; 0 = no prefix cache")
      ->transform(whole_number<std::uint32_t>())
      ->capture_default_str();
  command.add_option("--time-scale", m.time_scale, "Run this many times faster")
      ->transform(number_above(0))
      ->capture_default_str();
  as_duration(command.add_option("--step-base-ms", parsed.step_base_ms, "Step time of an empty batch"),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
  as_duration(command.add_option("--step-per-request-ms", parsed.step_per_request_ms,
                                 "Step time added by each decoding request"),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
  as_duration(command.add_option("--step-per-kv-token-us", parsed.step_per_kv_token_us,
                                 "Step time added by each KV token of those"),
              {.unit = time_unit::microseconds})
      ->capture_default_str();
  command.add_option("--prefill-tokens-per-s", parsed.prefill_tokens_per_s, "Prefill speed")
      ->transform(number_above(0))
      ->capture_default_str();
  command.add_option("--step-jitter", m.step_jitter, "Each step is longer or shorter by up to this share")
      ->transform(number(0, 0.9))
      ->capture_default_str();
  as_duration(command.add_option("--kv-transfer-ms", parsed.kv_transfer_ms,
                                 "Prefill to decode: time of a transfer besides its tokens"),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
  as_duration(command.add_option("--pd-wait", m.pd_wait_s, "How long a leg of a pair waits for the other, scaled"),
              {.least_s = 1e-3})
      ->capture_default_str();
  command.add_flag("--lockstep", parsed.engine.lockstep,
                   "All ranks of this process step together, as under DP attention");
  command.add_option("--seed", parsed.engine.seed, "Seed of the jitter")
      ->transform(whole_number<std::uint64_t>())
      ->capture_default_str();
}

void declare_behaviour(CLI::App& command, parsed_options& parsed) {
  command.add_option("--fault", parsed.faults,
                     "crash-at-start | crash-after=N | freeze-after=N | slow=K | no-load | garbage-load | fail-all | "
                     "odd-layout[=missing|inserted]; repeatable");
  command.add_option("--fault-rank", parsed.fault_rank, "Only this rank misbehaves")->transform(whole_number(0, 65535));
  command.add_flag("--quiet", parsed.engine.quiet, "No line per rank joined");
  command.add_flag("--die-with-parent", parsed.engine.die_with_parent, "End when the parent process ends");
}

void finish_options(parsed_options& parsed) {
  for (const std::string& fault : parsed.faults) {
    if (const auto added = add_fault(parsed.engine.faults, fault); !added) {
      throw CLI::ValidationError("--fault", added.error());
    }
  }
  engine_options& o = parsed.engine;
  o.role = parsed.role == "prefill"  ? core::pool_role::prefill
           : parsed.role == "decode" ? core::pool_role::decode
                                     : core::pool_role::unified;
  o.release = parsed.release == "0.5.21" ? engine_release::sglang_0_5_21 : engine_release::sglang_0_5_23;
  o.model.step_time = {parsed.step_base_ms * 1e-3, parsed.step_per_request_ms * 1e-3,
                       parsed.step_per_kv_token_us * 1e-6, 1 / parsed.prefill_tokens_per_s};
  o.model.kv_transfer_base_s = parsed.kv_transfer_ms * 1e-3;
  if (parsed.fault_rank >= 0) {
    o.fault_rank = static_cast<std::uint16_t>(parsed.fault_rank);
  }
  if (o.role == core::pool_role::prefill && o.bootstrap_port == 0) {
    throw CLI::ValidationError("--bootstrap-port", "a prefill rank needs one");
  }
  if (std::uint32_t{o.first_rank} + o.ranks > 65'536) {
    throw CLI::ValidationError("--first-rank", "ranks are numbered up to 65535");
  }
}

} // namespace

void add_engine_command(CLI::App& app, int& exit_code) {
  auto* const command = app.add_subcommand("engine", "Simulated engine ranks that dial in to a node");
  command->footer(
      "Exit codes: 0 stopped by a signal, 3 handshake failed, 4 cannot listen, 70 crashed as --fault asked.");
  const auto parsed = std::make_shared<parsed_options>();
  declare_place(*command, *parsed);
  declare_model(*command, *parsed);
  declare_behaviour(*command, *parsed);
  command->callback([parsed, &exit_code] {
    finish_options(*parsed);
    exit_code = run_engine(parsed->engine);
  });
}

} // namespace rankwise::app
