#include "app/sim/suite_report.hpp"

#include "app/sim/sim_files.hpp"
#include "app/sim/sim_setup.hpp"
#include "sim/suite.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <thread>
#include <unistd.h>

namespace rankwise::app {

namespace {

using nlohmann::json;

sim::suite_settings settings_of(const sim_options& o) {
  sim::suite_settings settings;
  settings.traces = o.traces;
  settings.requests_max = o.suite_requests;
  settings.threads = o.threads == 0 ? std::max(std::thread::hardware_concurrency(), 1U) : o.threads;
  settings.seed = o.workload.seed;
  settings.short_form = o.short_form;
  settings.tuning = tuning_of(o);
  return settings;
}

json to_json(const sim::suite_figure& f) {
  return {{"scenario", f.scenario},
          {"policy", f.policy},
          {"metric", f.metric},
          {"value", f.value},
          {"sample", f.sample.n},
          {"sample_unit", f.sample.unit},
          {"best_peer", f.best_peer.empty() ? json(nullptr) : json(f.best_peer)},
          {"best_peer_value", f.best_peer.empty() ? json(nullptr) : json(f.best_peer_value)},
          {"target", f.target.empty() ? json(nullptr) : json(f.target)},
          {"holds", f.holds}};
}

/// Of figures without a target only the means over scenarios are shown.
void print(const sim::suite_figure& f) {
  const auto sample = fmt::format("{} {}", f.sample.n, f.sample.unit);
  if (f.target.empty()) {
    if (f.metric.find("geometric") != std::string::npos)
      fmt::print("{:<66} {:<12} {:<50} {:>10.3f}  {}\n", f.scenario, f.policy, f.metric, f.value, sample);
    return;
  }
  fmt::print("{:<66} {:<12} {:<32} {:>10.4g}  {:<15} {:<26} {:<18} {:>10}  {}\n", f.scenario, f.policy, f.metric,
             f.value, sample, f.target, f.best_peer,
             f.best_peer.empty() ? "" : fmt::format("{:.4g}", f.best_peer_value), f.holds ? "yes" : "NO");
}

/// Runs the suite; on a terminal it shows how far it is.
auto run_showing_progress(const sim_options& o) {
  const bool live = isatty(STDERR_FILENO) != 0;
  auto result = sim::run_suite(settings_of(o), [&](std::size_t done, std::size_t all) {
    if (live)
      fmt::print(stderr, "\r{}/{} runs ", done, all);
  });
  if (live)
    fmt::print(stderr, "\r");
  return result;
}

} // namespace

bool run_suite(const sim_options& o) {
  const auto begin = std::chrono::steady_clock::now();
  const auto result = run_showing_progress(o);
  for (const auto& missing : result.missing)
    fmt::print("left out: {}\n", missing);
  std::size_t wanted = 0;
  std::size_t held = 0;
  fmt::print("{:<66} {:<12} {:<32} {:>10}  {:<15} {:<26} {:<18} {:>10}  {}\n", "SCENARIO", "POLICY", "METRIC", "VALUE",
             "SAMPLE", "TARGET", "BEST PEER", "ITS VALUE", "HOLDS");
  auto rows = json::array();
  for (const auto& f : result.figures) {
    rows.push_back(to_json(f));
    print(f);
    if (f.target.empty())
      continue;
    ++wanted;
    held += f.holds ? 1 : 0;
  }
  fmt::print("{} of {} figures hold; {:.0f} s\n", held, wanted,
             core::to_seconds(std::chrono::steady_clock::now() - begin));
  if (!o.json_file.empty())
    write_file(o.json_file, rows.dump(2) + "\n");
  return held == wanted;
}

} // namespace rankwise::app
