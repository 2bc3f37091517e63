#include "app/sim/sim_command.hpp"

#include "app/options/option_checks.hpp"
#include "app/replay/replay_command.hpp"
#include "app/sim/decisions_csv.hpp"
#include "app/sim/line_plot.hpp"
#include "core/placement/policy.hpp"
#include "record/decision_log.hpp"
#include "sim/load_paths.hpp"
#include "sim/request_classes.hpp"
#include "sim/step_fit.hpp"
#include "sim/suite.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace rankwise::app {

namespace {

using nlohmann::json;

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

struct run {
  std::string policy;
  sim::simulation_result result;
  sim::run_summary summary;
  double took_s = 0;
};

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush())
    throw std::runtime_error("cannot write " + path.string());
}

/// "dies:3@120", "slows:3@60:2", "joins:3@200", "drains:3@50"; in a pd pool also "freezes:decode:3@70"
sim::rank_happening parse_event(const std::string& text, const sim::simulation_options& pool) {
  using kind = sim::rank_happening::kind;
  const std::map<std::string, kind> kinds{{"dies", kind::dies},
                                          {"slows", kind::slows},
                                          {"joins", kind::joins},
                                          {"drains", kind::drains},
                                          {"freezes", kind::freezes}};
  const auto fail = [&](const std::string& why) { throw std::runtime_error("--event: \"" + text + "\"" + why); };
  sim::rank_happening h;
  const auto colon = text.find(':');
  const auto found = kinds.find(text.substr(0, colon));
  auto where = colon == std::string::npos ? std::string{} : text.substr(colon + 1);
  const bool pair = pool.shape == sim::pool_shape::pair;
  for (const auto role : {core::pool_role::prefill, core::pool_role::decode}) {
    const auto name = std::string{core::to_string(role)} + ":";
    if (!where.starts_with(name))
      continue;
    if (!pair)
      fail(": only a pd pool (--pool pd) has a prefill and a decode pool");
    h.pool = role;
    where = where.substr(name.size());
  }
  const auto at = where.find('@');
  const auto more = where.find(':');
  const auto time = parse_duration(at == std::string::npos ? "" : where.substr(at + 1, more - at - 1)).value_or(-1);
  unsigned rank = 0;
  const auto* const rank_end = where.data() + std::min(at, where.size());
  const auto read = std::from_chars(where.data(), rank_end, rank);
  if (found == kinds.end() || read.ec != std::errc{} || read.ptr != rank_end || time < 0 || time > duration_max_s)
    fail(fmt::format(" is not dies|slows|joins|drains|freezes:[prefill:|decode:]RANK@TIME[:FACTOR]; TIME is {}, up to "
                     "{}",
                     duration_notation(), duration_text(duration_max_s)));
  const bool prefills = pair && h.pool == core::pool_role::prefill && pool.prefill_ranks > 0;
  const unsigned ranks = prefills ? pool.prefill_ranks : pool.ranks;
  if (rank >= ranks)
    fail(fmt::format(": rank {} is not one of 0 to {}", rank, ranks - 1));
  h.what = found->second;
  h.at_s = time;
  h.rank = static_cast<std::uint16_t>(rank);
  h.factor = 2;
  if (more != std::string::npos) {
    const auto factor = parse_number(where.substr(more + 1));
    if (!factor || *factor <= 0)
      fail(": the factor is not a number above 0");
    h.factor = *factor;
  }
  return h;
}

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
    s.happenings.push_back(parse_event(e, s));
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

struct column {
  const char* title;
  double sim::run_summary::*value;
  double factor;
  int digits;
  bool lowest; // the best is the lowest; false: the highest
};

constexpr column columns[] = {{"TTFT mean s", &sim::run_summary::ttft_mean_s, 1, 3, true},
                              {"p50 s", &sim::run_summary::ttft_p50_s, 1, 3, true},
                              {"p99 s", &sim::run_summary::ttft_p99_s, 1, 2, true},
                              {"slowdown p99", &sim::run_summary::slowdown_p99, 1, 1, true},
                              {"gap p50 ms", &sim::run_summary::gap_p50_s, 1e3, 1, true},
                              {"p99 ms", &sim::run_summary::gap_p99_s, 1e3, 1, true},
                              {"goodput %", &sim::run_summary::goodput_share, 100, 1, false},
                              {"KV max/mean", &sim::run_summary::busiest_to_mean_kv, 1, 3, true},
                              {"hits %", &sim::run_summary::prefix_hit_share, 100, 1, false}};

void print_table(const std::vector<run>& runs) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  fmt::print("{:<24}", "POLICY");
  for (const auto& c : columns)
    fmt::print(" {:>12}", c.title);
  fmt::print(" {:>7} {:>6} {:>8}\n", "wall s", "LOST", "HASH");
  for (const auto& r : runs) {
    fmt::print("{:<24}", r.policy);
    for (const auto& c : columns) {
      double best = r.summary.*c.value;
      for (const auto& other : runs)
        if (other.policy.find("oracle") == std::string::npos)
          best = c.lowest ? std::min(best, other.summary.*c.value) : std::max(best, other.summary.*c.value);
      const auto text = fmt::format("{:>12.{}f}", r.summary.*c.value * c.factor, c.digits);
      const bool bold = terminal && r.summary.*c.value == best && r.policy.find("oracle") == std::string::npos;
      fmt::print(" {}{}{}", bold ? "\x1b[1m" : "", text, bold ? "\x1b[0m" : "");
    }
    fmt::print(" {:>7.2f} {:>6} {:>8.8s}\n", r.took_s, r.summary.requests - r.summary.completed,
               fmt::format("{:016x}", r.result.event_hash));
  }
}

/// Only where there are classes to tell apart.
void print_classes(const std::vector<run>& runs) {
  if (sim::summarise_classes(runs.front().result).size() < 2)
    return;
  fmt::print("\n{:<24} {:>8} {:>8} {:>9} {:>12} {:>12} {:>12} {:>12}\n", "POLICY", "PRIORITY", "DEADLINE", "REQUESTS",
             "TTFT mean s", "p99 s", "wait max s", "in time %");
  for (const auto& r : runs)
    for (const auto& c : sim::summarise_classes(r.result))
      fmt::print("{:<24} {:>8} {:>8} {:>9} {:>12.3f} {:>12.2f} {:>12.2f} {:>12}\n", r.policy, c.priority,
                 c.with_deadline ? "yes" : "no", c.requests, c.ttft_mean_s, c.ttft_p99_s, c.held_max_s,
                 c.with_deadline ? fmt::format("{:.1f}", 100 * c.deadlines_met_share) : "-");
}

json classes_to_json(const sim::simulation_result& result) {
  auto rows = json::array();
  for (const auto& c : sim::summarise_classes(result))
    rows.push_back({{"priority", c.priority},
                    {"with_deadline", c.with_deadline},
                    {"requests", c.requests},
                    {"ttft_mean_s", c.ttft_mean_s},
                    {"ttft_p99_s", c.ttft_p99_s},
                    {"wait_max_s", c.held_max_s},
                    {"deadlines_met_share", c.with_deadline ? json(c.deadlines_met_share) : json(nullptr)}});
  return rows;
}

plot_line distribution(const std::string& label, std::vector<double> values) {
  plot_line line{label, {}};
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i)
    line.points.emplace_back(values[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
  return line;
}

void plot(const std::string& folder, const std::string& title, const std::vector<run>& runs) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path out = folder;
  std::vector<plot_line> ttft;
  std::vector<plot_line> gaps;
  for (const auto& r : runs) {
    std::vector<double> waits;
    for (const auto& q : r.result.requests)
      if (q.first_token_s >= 0)
        waits.push_back(q.first_token_s - q.arrival_s);
    ttft.push_back(distribution(r.policy, std::move(waits)));
    plot_line line{r.policy, {}};
    std::uint64_t seen = 0;
    for (const auto& [end, count] : r.result.gaps.buckets()) {
      seen += count;
      line.points.emplace_back(end * 1e3,
                               100.0 * static_cast<double>(seen) / static_cast<double>(r.result.gaps.count()));
    }
    gaps.push_back(std::move(line));
    const auto& series = r.result.series;
    std::vector<plot_line> kv;
    for (std::size_t rank = 0; rank < series.kv_share.size(); ++rank) {
      plot_line l{fmt::format("rank {}", rank), {}};
      for (std::size_t i = 0; i < series.at_s.size(); ++i)
        l.points.emplace_back(series.at_s[i], 100 * series.kv_share[rank][i]);
      kv.push_back(std::move(l));
    }
    write_file(out / ("kv-" + r.policy + ".svg"),
               line_plot_svg({"KV in use by rank, " + r.policy + ", " + title, "time (s)", "KV in use (%)"}, kv));
    std::vector<plot_line> queue;
    for (std::size_t rank = 0; rank < series.queue.size(); ++rank) {
      plot_line l{fmt::format("rank {}", rank), {}};
      for (std::size_t i = 0; i < series.at_s.size(); ++i)
        l.points.emplace_back(series.at_s[i], series.queue[rank][i]);
      queue.push_back(std::move(l));
    }
    plot_line held{"in the controller", {}};
    for (std::size_t i = 0; i < series.at_s.size(); ++i)
      held.points.emplace_back(series.at_s[i], series.held[i]);
    queue.push_back(std::move(held));
    write_file(out / ("queue-" + r.policy + ".svg"),
               line_plot_svg({"Requests that wait, " + r.policy + ", " + title, "time (s)", "requests"}, queue));
  }
  write_file(out / "ttft.svg",
             line_plot_svg({"Time to first token, " + title, "time to first token (s)", "requests (%)", true}, ttft));
  write_file(out / "gaps.svg", line_plot_svg({"Time between tokens, " + title, "gap (ms)", "gaps (%)", true}, gaps));
}

json to_json(const run& r) {
  const auto& s = r.summary;
  return {{"policy", r.policy},
          {"requests", s.requests},
          {"completed", s.completed},
          {"refused", s.refused},
          {"failed", s.failed},
          {"ttft_mean_s", s.ttft_mean_s},
          {"ttft_p50_s", s.ttft_p50_s},
          {"ttft_p99_s", s.ttft_p99_s},
          {"ttft_idle_p99_s", s.ttft_bound_p99_s},
          {"slowdown_mean", s.slowdown_mean},
          {"slowdown_p99", s.slowdown_p99},
          {"slowdown_max", s.slowdown_max},
          {"gap_p50_s", s.gap_p50_s},
          {"gap_p99_s", s.gap_p99_s},
          {"gap_mean_s", s.gap_mean_s},
          {"wait_max_s", s.held_max_s},
          {"goodput_share", s.goodput_share},
          {"tokens_per_s", s.tokens_per_s},
          {"busiest_to_mean_kv", s.busiest_to_mean_kv},
          {"busiest_to_mean_work", s.busiest_to_mean_work},
          {"prefix_hit_share", s.prefix_hit_share},
          {"retractions", r.result.retractions},
          {"steps", r.result.steps},
          {"classes", classes_to_json(r.result)},
          {"event_hash", fmt::format("{:016x}", r.result.event_hash)},
          {"wall_s", r.took_s}};
}

/// One file for each policy: FILE, or FILE with the policy before its ending when there are several.
std::filesystem::path file_of(std::filesystem::path path, const std::string& policy, bool several) {
  if (several)
    path.replace_filename(path.stem().string() + "-" + policy + path.extension().string());
  return path;
}

/// Nobody waits for a simulation that writes.
class plain_lines final : public record::line_sink {
 public:
  explicit plain_lines(const std::filesystem::path& path) : path_(path), file_(path) {}
  void write(std::string&& line) noexcept override { file_ << line << '\n'; }
  void lose() noexcept override { file_.setstate(std::ios::badbit); }
  void close() {
    if (!file_.flush())
      throw std::runtime_error("cannot write " + path_.string());
  }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The decision log of one run; without a file nothing.
class run_log {
 public:
  run_log(const std::string& file, const std::string& policy, bool several, sim::simulation_options& options) {
    if (file.empty())
      return;
    if (options.oracle)
      throw std::runtime_error("--decision-log: " + policy + " decides by what no controller is told");
    sink_ = std::make_unique<plain_lines>(file_of(file, policy, several));
    options.recorder = [this](std::uint32_t front_end, std::uint32_t pool) {
      return writers_.emplace_back(std::make_unique<record::decision_writer>(*sink_, 2 * front_end + pool)).get();
    };
  }
  void close() {
    if (sink_)
      sink_->close();
  }

 private:
  std::unique_ptr<plain_lines> sink_;
  std::vector<std::unique_ptr<record::decision_writer>> writers_;
};

void write_decisions(const sim_options& o, const std::string& head, const std::vector<run>& runs) {
  std::vector<std::string> names;
  std::vector<policy_decisions> decisions;
  for (const auto& r : runs) {
    names.push_back(r.policy);
    decisions.push_back({r.policy, r.result.requests});
  }
  write_file(o.decisions, fmt::format("# {}, policy {}, ranks {}, seed {}\n", head, fmt::join(names, " "), o.ranks,
                                      o.workload.seed) +
                              decisions_csv(decisions, o.pool == "pd"));
}

std::string_view explain(sim::constant_source source) {
  switch (source) {
  case sim::constant_source::fitted:
    return "";
  case sim::constant_source::zero:
    return "would be negative: 0 instead, and the others fitted with that";
  case sim::constant_source::kept_none:
    return "cannot be told, no step has any: kept as it was";
  case sim::constant_source::kept_mixed:
    return "cannot be told apart from those above, with which it always comes in proportion: kept as it was";
  }
  return "";
}

/// The constants of the steps in the file --fit, in place of those of the options.
void fit_steps(sim_options& o) {
  const auto steps = sim::load_steps(o.fit);
  if (!steps)
    throw std::runtime_error("--fit: " + to_string(steps.error()));
  const auto fit = sim::fit_step_time(*steps, step_time_of(o));
  constexpr double never_slower = 1e12; // tokens a second where they cost nothing
  const auto& c = fit.constants;
  o.step_base_ms = c.base_s * 1e3;
  o.step_per_request_ms = c.per_request_s * 1e3;
  o.step_per_kv_token_us = c.per_kv_token_s * 1e6;
  o.prefill_tokens_per_s = c.per_prefill_token_s > 0 ? 1 / c.per_prefill_token_s : never_slower;
  fmt::print("{}: {} steps; error RMS {:.3f} ms, mean {:.2f} % of a step\n", o.fit, fit.steps, fit.error_rms_s * 1e3,
             fit.error_mean_share * 100);
  struct line {
    const char* option;
    double value;
  };
  const line lines[] = {{"--step-base-ms", o.step_base_ms},
                        {"--step-per-request-ms", o.step_per_request_ms},
                        {"--step-per-kv-token-us", o.step_per_kv_token_us},
                        {"--prefill-tokens-per-s", o.prefill_tokens_per_s}};
  for (std::size_t i = 0; i < std::size(lines); ++i)
    fmt::print("  {} {:.6g}{}{}\n", lines[i].option, lines[i].value,
               fit.sources[i] == sim::constant_source::fitted ? "" : "   ", explain(fit.sources[i]));
  fmt::print("\n");
}

int run_policies(sim_options& o) {
  check_policies(o.policies);
  if (o.utilisation > 0 && o.workload.is_closed_loop())
    throw std::runtime_error("--utilisation: the clients of a closed loop wait for the pool, which is never asked for "
                             "more than it does; choose the load with --clients and --think-s");
  auto choice = o.workload;
  if (o.utilisation > 0)
    choice.speed = 1;
  auto load = choose_workload(choice);
  if (!load)
    throw std::runtime_error(load.error());
  if (load->requests.empty())
    throw std::runtime_error("the workload has no requests");
  const auto base = simulation_of(o, *load);
  double speed = o.workload.speed;
  if (o.utilisation > 0) {
    speed = o.utilisation * sim::saturation_speed(*load, base);
    load = sim::limited(std::move(*load), {speed});
  }
  auto classes = o.classes;
  classes.seed = o.workload.seed;
  sim::assign_classes(*load, classes, base);
  const auto name = o.workload.trace.empty() ? load->name : std::filesystem::path(o.workload.trace).filename().string();
  const auto head = fmt::format("{}, speed {:.4g}", name, speed);
  std::vector<run> runs;
  for (const auto& policy : o.policies) {
    auto options = base;
    sim::apply_policy(policy, options);
    options.load_path = sim::load_path_of(policy, base.load_path);
    run_log log{o.decision_log, policy, o.policies.size() > 1, options};
    const auto begin = std::chrono::steady_clock::now();
    run r{policy, sim::simulate(*load, options), {}, 0};
    r.took_s = core::to_seconds(std::chrono::steady_clock::now() - begin);
    log.close();
    r.summary = sim::summarise(r.result, options);
    runs.push_back(std::move(r));
  }
  const auto& any = runs.front().summary;
  const auto following = sim::request_followers(*load).count();
  fmt::print("{}: {} requests in {:.0f} s{}, pool {}, {} ranks, {}, seed {}\n", head, load->requests.size(),
             load->span_s(),
             following == 0 ? "" : fmt::format(" or more ({} come after the end of another)", following), o.pool,
             o.ranks, o.lockstep ? "lockstep" : "independent", o.workload.seed);
  fmt::print("P99 of the TTFT on an idle pool, which no rule can beat by much: {:.2f} s\n\n", any.ttft_bound_p99_s);
  print_table(runs);
  print_classes(runs);
  if (!o.plot.empty()) {
    plot(o.plot, fmt::format("{} ({}, {} ranks)", head, o.pool, o.ranks), runs);
    fmt::print("\nplots: {}\n", o.plot);
  }
  if (!o.decisions.empty())
    write_decisions(o, head, runs);
  if (!o.steps.empty())
    for (const auto& r : runs)
      write_file(file_of(o.steps, r.policy, runs.size() > 1), sim::steps_csv(r.result.recorded_steps));
  if (!o.json_file.empty()) {
    auto rows = json::array();
    for (const auto& r : runs)
      rows.push_back(to_json(r));
    write_file(o.json_file, json{{"trace", name},
                                 {"speed", speed},
                                 {"pool", o.pool},
                                 {"ranks", o.ranks},
                                 {"lockstep", o.lockstep},
                                 {"seed", o.workload.seed},
                                 {"policies", rows}}
                                    .dump(2) +
                                "\n");
  }
  return 0;
}

int run_suite(const sim_options& o) {
  sim::suite_settings settings;
  settings.traces = o.traces;
  settings.requests_max = o.suite_requests;
  settings.threads = o.threads == 0 ? std::max(std::thread::hardware_concurrency(), 1U) : o.threads;
  settings.seed = o.workload.seed;
  settings.short_form = o.short_form;
  settings.tuning = tuning_of(o);
  const bool live = isatty(STDERR_FILENO) != 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto result = sim::run_suite(settings, [&](std::size_t done, std::size_t all) {
    if (live)
      fmt::print(stderr, "\r{}/{} runs ", done, all);
  });
  if (live)
    fmt::print(stderr, "\r");
  for (const auto& missing : result.missing)
    fmt::print("left out: {}\n", missing);
  std::size_t wanted = 0;
  std::size_t held = 0;
  fmt::print("{:<66} {:<12} {:<32} {:>10}  {:<26} {:<18} {:>10}  {}\n", "SCENARIO", "POLICY", "METRIC", "VALUE",
             "TARGET", "BEST PEER", "ITS VALUE", "HOLDS");
  auto rows = json::array();
  for (const auto& f : result.figures) {
    rows.push_back({{"scenario", f.scenario},
                    {"policy", f.policy},
                    {"metric", f.metric},
                    {"value", f.value},
                    {"best_peer", f.best_peer.empty() ? json(nullptr) : json(f.best_peer)},
                    {"best_peer_value", f.best_peer.empty() ? json(nullptr) : json(f.best_peer_value)},
                    {"target", f.target.empty() ? json(nullptr) : json(f.target)},
                    {"holds", f.holds}});
    if (f.target.empty()) {
      if (f.metric.find("geometric") != std::string::npos)
        fmt::print("{:<66} {:<12} {:<50} {:>10.3f}\n", f.scenario, f.policy, f.metric, f.value);
      continue;
    }
    ++wanted;
    held += f.holds ? 1 : 0;
    fmt::print("{:<66} {:<12} {:<32} {:>10.4g}  {:<26} {:<18} {:>10}  {}\n", f.scenario, f.policy, f.metric, f.value,
               f.target, f.best_peer, f.best_peer.empty() ? "" : fmt::format("{:.4g}", f.best_peer_value),
               f.holds ? "yes" : "NO");
  }
  fmt::print("{} of {} figures hold; {:.0f} s\n", held, wanted,
             core::to_seconds(std::chrono::steady_clock::now() - begin));
  if (!o.json_file.empty())
    write_file(o.json_file, rows.dump(2) + "\n");
  return held == wanted ? 0 : 1;
}

} // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
  auto parsed = std::make_shared<sim_options>();
  auto& o = *parsed;
  auto& command = *app.add_subcommand("sim", "Placement policies on a simulated pool");
  command.footer("Example: rankwise sim --trace conversation_trace.jsonl --utilisation 0.9 --policies "
                 "total_tokens,headroom --plot plots");
  add_workload_options(command, o.workload);
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
  command.add_option("--event", o.events,
                     "dies|slows|joins|drains|freezes:[prefill:|decode:]RANK@TIME[:FACTOR], may be repeated; of a pd "
                     "pool the prefill pool unless it says decode; TIME is " +
                         duration_notation());
  as_duration(command.add_option("--freeze-detection-ms", o.freeze_detection_ms, "Until a frozen rank is taken down"),
              {.unit = time_unit::milliseconds})
      ->capture_default_str();
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
  command.add_option("--plot", o.plot, "Folder for plots (SVG): TTFT, gaps, KV and queue of each rank over time");
  command.add_option("--json", o.json_file, "File for the figures");
  command.add_option("--decision-log", o.decision_log,
                     "Write every input and decision of the controllers, for replay-decisions");
  command.add_option("--decisions", o.decisions,
                     "File for every decision: request, time, rank (csv); two columns for each policy");
  command.add_option("--steps", o.steps,
                     "File for every step: its seconds, requests that decode, their KV tokens, prefilled tokens (csv)");
  command.add_option("--fit", o.fit,
                     "File of steps as --steps writes them, measured at an engine: fits the four --step and --prefill "
                     "constants to them and prints these; with --trace or --workload the run has them");
  command.add_flag("--suite", o.suite, "The comparison of docs/placement.md with its targets");
  command.add_flag("--short", o.short_form, "With --suite: built-in workloads, less than a minute");
  command.add_option("--traces", o.traces, "With --suite: folder of the public traces; without it built-in workloads");
  command.add_option("--suite-requests", o.suite_requests, "With --suite: requests of each trace at most")
      ->transform(whole_number(100, 5'000'000))
      ->capture_default_str();
  command.add_option("--threads", o.threads, "With --suite; 0 = as many as there are processors")
      ->transform(whole_number(0, 1024))
      ->capture_default_str();
  command.callback([parsed, &command, &exit_code] {
    try {
      if (parsed->suite && !(parsed->fit.empty() && parsed->steps.empty()))
        throw std::runtime_error("--suite: its constants are its own; neither --fit nor --steps goes with it");
      if (!parsed->fit.empty())
        fit_steps(*parsed);
      if (!parsed->fit.empty() && command.count("--trace") + command.count("--workload") == 0)
        return;
      exit_code = parsed->suite ? run_suite(*parsed) : run_policies(*parsed);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rankwise sim: {}\n", error.what());
      exit_code = 2;
    }
  });
}

} // namespace rankwise::app
