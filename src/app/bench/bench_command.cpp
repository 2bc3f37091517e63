#include "app/bench/bench_command.hpp"

#include "app/bench/bench_figure.hpp"
#include "app/bench/bench_groups.hpp"
#include "app/bench/bench_options.hpp"
#include "app/bench/bench_server.hpp"
#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace rankwise::app {

namespace {

/// The machine that the figures are of.
std::string machine() {
  std::string model = "unknown CPU";
  std::ifstream info{"/proc/cpuinfo"};
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  double load = 0;
  std::ifstream{"/proc/loadavg"} >> load;
  return fmt::format("{} x {}, load average {:.1f} before", std::thread::hardware_concurrency(), model, load);
}

int run_bench_node(bench_options o) {
  if (o.quick) {
    o.seconds = 1;
    o.rounds = 2;
  }
  try {
    std::vector<figure> figures;
    fmt::print("{}\n", machine());
    spdlog::set_level(spdlog::level::warn); // the actors that run in this process
    const auto wanted = [&](std::string_view group) { return o.only.empty() || o.only == group; };
    if (wanted("idle"))
      measure_idle(o, figures);
    if (wanted("actors"))
      measure_actors(o, figures);
    if (wanted("dispatch"))
      measure_dispatch(o, figures);
    if (wanted("streams"))
      for (const std::uint32_t streams : {512U, 2048U})
        measure_streams(o, streams, figures);
    fmt::print("\n");
    print(figures);
    if (!o.json_file.empty() && !(std::ofstream{o.json_file} << to_json(figures).dump(2) << "\n"))
      throw std::runtime_error("cannot write " + o.json_file);
    const bool good = std::all_of(figures.begin(), figures.end(), [](const figure& f) { return f.holds(); });
    return good || o.no_fail ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "rankwise bench: " << e.what() << "\n";
    return 2;
  }
}

} // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto* bench = app.add_subcommand("bench", "Figures, each beside its reference measured in the same run");
  bench->require_subcommand(1);
  auto* node =
      bench->add_subcommand("node", "CPU per token and gaps beside a plain grpc++ server and a bare prototype; "
                                    "accepted to dispatched; an idle node; its actors beside the same "
                                    "adapters without actors; memory of 100,000 requests; cost of a placement");
  auto o = std::make_shared<bench_options>();
  node->add_option("--json", o->json_file,
                   "write the figures to this file: [{name, value, unit, reference, ratio, target, holds}]");
  node->add_option("--only", o->only, "measure one group of figures")
      ->check(CLI::IsMember({"idle", "actors", "dispatch", "streams"}));
  node->add_flag("--no-fail", o->no_fail, "exit with 0 also when a target is missed");
  as_duration(node->add_option("--seconds", o->seconds, "length of each measuring window"), {.least_s = 1e-3})
      ->capture_default_str();
  node->add_option("--rounds", o->rounds, "how often each server is measured, in turn; medians count")
      ->transform(whole_number(2, 100))
      ->capture_default_str();
  node->add_flag("--quick", o->quick, "two rounds of one second: to see that it works, not for figures");
  node->callback([o, &exit_code] { exit_code = run_bench_node(*o); });

  auto* server = app.add_subcommand("bench-server", "What `bench node` measures the node against")->group("");
  auto s = std::make_shared<bench_server_options>();
  server->add_option("--kind", s->kind)->check(CLI::IsMember({"grpcpp", "bare"}));
  server->add_option("--ranks", s->ranks)->transform(whole_number(1, 65535));
  server->add_option("--folder", s->folder)->required();
  server->callback([s, &exit_code] { exit_code = run_bench_server(*s); });
}

} // namespace rankwise::app
