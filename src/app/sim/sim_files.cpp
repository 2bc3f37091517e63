#include "app/sim/sim_files.hpp"

#include "app/sim/decisions_csv.hpp"
#include "sim/step_fit.hpp"
#include "sim/summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace rankwise::app {

namespace {

using nlohmann::json;

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

json to_json(const policy_run& r) {
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

} // namespace

void write_figures(const sim_options& o, const policy_runs& played) {
  auto rows = json::array();
  for (const auto& r : played.runs)
    rows.push_back(to_json(r));
  write_file(o.json_file, json{{"trace", played.workload},
                               {"speed", played.speed},
                               {"pool", o.pool},
                               {"ranks", o.ranks},
                               {"lockstep", o.lockstep},
                               {"seed", o.workload.seed},
                               {"policies", rows}}
                                  .dump(2) +
                              "\n");
}

void write_decisions(const sim_options& o, const policy_runs& played) {
  std::vector<std::string> names;
  std::vector<policy_decisions> decisions;
  for (const auto& r : played.runs) {
    names.push_back(r.policy);
    decisions.push_back({r.policy, r.result.requests});
  }
  write_file(o.decisions, fmt::format("# {}, policy {}, ranks {}, seed {}\n", played.title(), fmt::join(names, " "),
                                      o.ranks, o.workload.seed) +
                              decisions_csv(decisions, o.pool == "pd"));
}

void write_steps(const sim_options& o, const policy_runs& played) {
  for (const auto& r : played.runs)
    write_file(file_of(o.steps, r.policy, played.runs.size() > 1), sim::steps_csv(r.result.recorded_steps));
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush())
    throw std::runtime_error("cannot write " + path.string());
}

std::filesystem::path file_of(std::filesystem::path path, const std::string& policy, bool several) {
  if (several)
    path.replace_filename(path.stem().string() + "-" + policy + path.extension().string());
  return path;
}

} // namespace rankwise::app
