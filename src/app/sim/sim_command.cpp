#include "app/sim/sim_command.hpp"

#include "app/sim/sim_files.hpp"
#include "app/sim/sim_options.hpp"
#include "app/sim/sim_plots.hpp"
#include "app/sim/sim_runs.hpp"
#include "app/sim/sim_table.hpp"
#include "app/sim/step_fit_report.hpp"
#include "app/sim/suite_report.hpp"

#include <CLI/CLI.hpp>

#include <fmt/format.h>
#include <memory>
#include <stdexcept>

namespace rankwise::app {

namespace {

void print_heading(const sim_options& o, const policy_runs& played) {
  const auto following = sim::request_followers(played.load).count();
  fmt::print("{}: {} requests in {:.0f} s{}, pool {}, {} ranks, {}, seed {}\n", played.title(),
             played.load.requests.size(), played.load.span_s(),
             following == 0 ? "" : fmt::format(" or more ({} come after the end of another)", following), o.pool,
             o.ranks, o.lockstep ? "lockstep" : "independent", o.workload.seed);
  fmt::print("P99 of the TTFT on an idle pool, which no rule can beat by much: {:.2f} s\n\n",
             played.runs.front().summary.ttft_bound_p99_s);
}

void compare_policies(const sim_options& o) {
  const auto played = play_policies(o);
  print_heading(o, played);
  print_table(played.runs);
  print_classes(played.runs);
  if (!o.plot.empty()) {
    plot_runs(o.plot, fmt::format("{} ({}, {} ranks)", played.title(), o.pool, o.ranks), played.runs);
    fmt::print("\nplots: {}\n", o.plot);
  }
  if (!o.decisions.empty())
    write_decisions(o, played);
  if (!o.steps.empty())
    write_steps(o, played);
  if (!o.json_file.empty())
    write_figures(o, played);
}

/// The exit code. `has_workload`: the command line names one, so that --fit is followed by a run.
int run(sim_options& o, bool has_workload) {
  if (o.suite && !(o.fit.empty() && o.steps.empty()))
    throw std::runtime_error("--suite: its constants are its own; neither --fit nor --steps goes with it");
  if (!o.fit.empty()) {
    fit_steps(o);
    if (!has_workload)
      return 0;
  }
  if (o.suite)
    return run_suite(o) ? 0 : 1;
  compare_policies(o);
  return 0;
}

} // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
  auto parsed = std::make_shared<sim_options>();
  auto& command = *app.add_subcommand("sim", "Placement policies on a simulated pool");
  command.footer("Example: rankwise sim --trace conversation_trace.jsonl --utilisation 0.9 --policies "
                 "total_tokens,headroom --plot plots");
  add_sim_options(command, *parsed);
  command.callback([parsed, &command, &exit_code] {
    try {
      exit_code = run(*parsed, command.count("--trace") + command.count("--workload") > 0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rankwise sim: {}\n", error.what());
      exit_code = 2;
    }
  });
}

} // namespace rankwise::app
