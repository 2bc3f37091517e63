#include "app/sim/sim_runs.hpp"

#include "app/sim/decision_log_file.hpp"
#include "app/sim/sim_setup.hpp"
#include "sim/load_paths.hpp"
#include "sim/pool_simulation.hpp"
#include "sim/suite.hpp"

#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

namespace rankwise::app {

namespace {

/// The workload of the options, at its own speed when the utilisation decides how fast it is played.
sim::workload load_of(const sim_options& o) {
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
  return std::move(*load);
}

policy_run play(const std::string& policy, const sim::workload& load, const sim::simulation_options& base,
                const sim_options& o) {
  auto options = base;
  sim::apply_policy(policy, options);
  options.load_path = sim::load_path_of(policy, base.load_path);
  decision_log_file log{o.decision_log, policy, o.policies.size() > 1, options};
  const auto begin = std::chrono::steady_clock::now();
  policy_run r{policy, sim::simulate(load, options), {}, 0};
  r.took_s = core::to_seconds(std::chrono::steady_clock::now() - begin);
  log.close();
  r.summary = sim::summarise(r.result, options);
  return r;
}

} // namespace

std::string policy_runs::title() const {
  return fmt::format("{}, speed {:.4g}", workload, speed);
}

policy_runs play_policies(const sim_options& o) {
  check_policies(o.policies);
  policy_runs played;
  played.load = load_of(o);
  const auto base = simulation_of(o, played.load);
  played.speed = o.workload.speed;
  if (o.utilisation > 0) {
    played.speed = o.utilisation * sim::saturation_speed(played.load, base);
    played.load = sim::limited(std::move(played.load), {played.speed});
  }
  auto classes = o.classes;
  classes.seed = o.workload.seed;
  sim::assign_classes(played.load, classes, base);
  played.workload =
      o.workload.trace.empty() ? played.load.name : std::filesystem::path(o.workload.trace).filename().string();
  for (const auto& policy : o.policies)
    played.runs.push_back(play(policy, played.load, base, o));
  return played;
}

} // namespace rankwise::app
