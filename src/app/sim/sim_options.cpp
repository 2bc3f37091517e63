#include "app/sim/sim_options.hpp"

#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>

namespace rankwise::app {

namespace {

/// The simulated pool and who places on it.
void add_pool_options(CLI::App& command, sim_options& o) {
  command.add_option("--pool", o.pool, "unified, decode (the KV of a prompt is there) or pd (prefill and decode)")
      ->check(CLI::IsMember({"unified", "decode", "pd"}))
      ->capture_default_str();
  command.add_option("--ranks", o.ranks, "Ranks of the pool")->transform(whole_number(1, 1024))->capture_default_str();
  command.add_option("--prefill-ranks", o.prefill_ranks, "Of a pd pool; 0 = as many as --ranks")
      ->transform(whole_number(0, 1024))
      ->capture_default_str();
  command.add_flag("--lockstep", o.lockstep, "Every step lasts as long as the slowest rank's (DP attention)");
  command.add_flag("--prefix-cache", o.prefix_cache, "Engines keep the KV of prompts, by the trace's blocks");
  command.add_option("--utilisation", o.utilisation, "Play the workload at this share of what the pool can do")
      ->transform(number(0.01, 10));
  command
      .add_option("--policies", o.policies, "Names, separated by commas; also oracle, oracle_least_kv, headroom_fcfs")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--front-ends", o.front_ends, "Controllers that share the pool, each with its own requests")
      ->transform(whole_number(1, 64))
      ->capture_default_str();
}

/// How controllers learn of load.
void add_report_options(CLI::App& command, sim_options& o) {
  as_duration(command.add_option("--report-ms", o.report_ms, "A rank samples its load at most so often"),
              {.least_s = 1e-6, .unit = time_unit::milliseconds})
      ->capture_default_str();
  as_duration(command.add_option("--report-delay-ms", o.report_delay_ms, "Until the controller has a report"),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
  command.add_option("--report-jitter", o.report_jitter, "The delay varies by up to this share")
      ->transform(number(0, 1))
      ->capture_default_str();
  command.add_option("--report-loss", o.report_loss, "Share of reports that are lost")
      ->transform(number(0, 1))
      ->capture_default_str();
  command.add_option("--silent-rank", o.silent_rank, "This rank reports nothing")->transform(whole_number(0, 1023));
}

/// Priorities and deadlines.
void add_class_options(CLI::App& command, sim_options& o) {
  const auto share = number(0, 1);
  command.add_option("--high-share", o.classes.high_share, "Share of the requests that get priority 1, by chance")
      ->transform(share);
  command.add_option("--low-share", o.classes.low_share, "And priority -1")->transform(share);
  command.add_option("--deadline-share", o.classes.deadline_share, "And a deadline of their first token")
      ->transform(share);
  command
      .add_option("--deadline-slack", o.classes.deadline_slack, "It is 1 s and so many times the TTFT on an idle pool")
      ->transform(number_above(0))
      ->capture_default_str();
}

/// What happens to ranks.
void add_event_options(CLI::App& command, sim_options& o) {
  command.add_option("--event", o.events,
                     "dies|slows|joins|drains|freezes:[prefill:|decode:]RANK@TIME[:FACTOR], may be repeated; of a pd "
                     "pool the prefill pool unless it says decode; TIME is " +
                         duration_notation());
  as_duration(command.add_option("--freeze-detection-ms", o.freeze_detection_ms, "Until a frozen rank is taken down"),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
}

/// How fast an engine is and what it holds.
void add_engine_options(CLI::App& command, sim_options& o) {
  command.add_option("--kv-tokens", o.kv_tokens, "KV capacity of a rank")
      ->transform(whole_number<std::uint64_t>(1))
      ->capture_default_str();
  command.add_option("--max-running", o.max_running, "Requests that a rank runs at once")
      ->transform(whole_number<std::uint32_t>(1))
      ->capture_default_str();
  command.add_option("--chunk-tokens", o.chunk_tokens, "Prompt tokens of one step")
      ->transform(whole_number<std::uint32_t>(1))
      ->capture_default_str();
  as_duration(command.add_option("--step-base-ms", o.step_base_ms, "A step takes so long ..."),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
  as_duration(
      command.add_option("--step-per-request-ms", o.step_per_request_ms, "... and so much for each that decodes ..."),
      {.unit = time_unit::milliseconds})
      ->capture_default_str();
  as_duration(
      command.add_option("--step-per-kv-token-us", o.step_per_kv_token_us, "... and for each of their KV tokens ..."),
      {.unit = time_unit::microseconds})
      ->capture_default_str();
  command.add_option("--prefill-tokens-per-s", o.prefill_tokens_per_s, "... and for each prompt token")
      ->transform(number_above(0))
      ->capture_default_str();
}

/// The tuning of the headroom policy.
void add_headroom_options(CLI::App& command, sim_options& o) {
  command.add_option("--late-binding", o.late_binding, "headroom: let requests wait for a rank")->capture_default_str();
  command.add_option("--learn", o.learn, "headroom: learn step times")->capture_default_str();
  command.add_option("--prefix-affinity", o.prefix_affinity, "headroom: prefer ranks that have the prompt's beginning")
      ->capture_default_str();
  command.add_option("--progress", o.progress, "headroom: count what steps can have computed of a prompt")
      ->capture_default_str();
  command.add_option("--damage-weight", o.damage_weight, "headroom: of the delay of other streams")
      ->transform(number(0, 100))
      ->capture_default_str();
  command.add_option("--work-weight", o.work_weight, "headroom: of prompt computing wherever it is")
      ->transform(number(0, 100))
      ->capture_default_str();
  command.add_option("--credit-chunks", o.credit_chunks, "headroom: chunks of prompts that a rank is given ahead")
      ->transform(number(0, 1000))
      ->capture_default_str();
}

/// What is written besides the table.
void add_output_options(CLI::App& command, sim_options& o) {
  command.add_option("--plot", o.plot, "Folder for plots (SVG): TTFT, gaps, KV and queue of each rank over time");
  command.add_option("--json", o.json_file, "File for the figures");
  command.add_option("--decision-log", o.decision_log,
                     "Write every input and decision of the controllers, for replay-decisions");
  command.add_option("--decisions", o.decisions,
                     "File for every decision: request, time, rank (csv); two columns for each policy");
  command.add_option("--steps", o.steps,
                     "File for every step: its seconds, requests that decode, their KV tokens, prefilled tokens (csv)");
}

/// Step times from a measured engine.
void add_fit_options(CLI::App& command, sim_options& o) {
  command.add_option("--fit", o.fit,
                     "File of steps as --steps writes them, measured at an engine: fits the four --step and --prefill "
                     "constants to them and prints these; with --trace or --workload the run has them");
}

/// The comparison of docs/placement.md.
void add_suite_options(CLI::App& command, sim_options& o) {
  command.add_flag("--suite", o.suite, "The comparison of docs/placement.md with its targets");
  command.add_flag(
      "--short", o.short_form,
      "With --suite: built-in workloads, less than a minute; shares are held to what so few scenarios can show");
  command.add_option("--traces", o.traces, "With --suite: folder of the public traces; without it built-in workloads");
  command.add_option("--suite-requests", o.suite_requests, "With --suite: requests of each trace at most")
      ->transform(whole_number(100, 5'000'000))
      ->capture_default_str();
  command.add_option("--threads", o.threads, "With --suite; 0 = as many as there are processors")
      ->transform(whole_number(0, 1024))
      ->capture_default_str();
}

} // namespace

void add_sim_options(CLI::App& command, sim_options& o) {
  add_workload_options(command, o.workload);
  add_pool_options(command, o);
  add_report_options(command, o);
  add_class_options(command, o);
  add_event_options(command, o);
  add_engine_options(command, o);
  add_headroom_options(command, o);
  add_output_options(command, o);
  add_fit_options(command, o);
  add_suite_options(command, o);
}

} // namespace rankwise::app
