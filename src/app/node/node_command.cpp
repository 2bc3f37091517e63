#include "app/node/node_command.hpp"

#include "app/node/history_file.hpp"
#include "app/node/limited_log_sink.hpp"
#include "app/node/node.hpp"
#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <sstream>

namespace rankwise::app {

namespace {

struct node_flags {
  std::string config;
  std::string grpc;
  std::string handshake;
  std::string admin;
  std::string advertise;
  std::string state;
  std::string policy;
  std::string history;
  std::string decisions;
  std::string log_level;
  std::string model_path;
  std::string served_model_name;
  int ranks = 0;
  bool check = false;
  bool fault_injection = false;
  bool no_load_forwarding = false;
};

/// The exit code of a node that was told to stop. A second signal is the end of its patience.
int drain_and_stop(node& running, double drain_s, const sigset_t& signals) {
  spdlog::info("event=stopping drain_s={}", drain_s);
  auto drained = std::async(std::launch::async, [&] {
    return running.drain(std::chrono::milliseconds{static_cast<std::int64_t>(drain_s * 1000)});
  });
  bool hurried = false;
  while (drained.wait_for(std::chrono::seconds{0}) != std::future_status::ready) {
    const timespec wait{0, 10'000'000};
    if (sigtimedwait(&signals, nullptr, &wait) < 0 || hurried)
      continue;
    hurried = true;
    spdlog::warn("event=drain_hurried cause=\"a second signal\" consequence=\"open streams end as shutting_down\"");
    sd_notify(0, "STATUS=stopping, hurried by a second signal");
    running.hurry();
  }
  const bool clean = drained.get();
  running.stop();
  return hurried && !clean ? 4 : 0;
}

int run_node(const node_flags& flags) {
  auto config = default_config();
  if (!flags.config.empty()) {
    auto loaded = load_config(flags.config);
    if (!loaded) {
      for (const auto& error : loaded.error())
        std::cerr << error << "\n";
      return 2;
    }
    config = std::move(*loaded);
  }
  if (!flags.grpc.empty())
    config.grpc = flags.grpc;
  if (!flags.admin.empty())
    config.admin = flags.admin;
  if (!flags.state.empty())
    config.state_dir = flags.state;
  if (!flags.history.empty())
    config.history_file = flags.history;
  if (!flags.decisions.empty())
    config.decision_log = flags.decisions;
  if (!flags.model_path.empty())
    config.front.model.model_path = flags.model_path;
  if (!flags.served_model_name.empty())
    config.front.model.served_model_name = flags.served_model_name;
  if (!flags.log_level.empty())
    config.log_level = flags.log_level;
  if (flags.no_load_forwarding)
    config.load_forwarding = false;
  config.fault_injection = config.fault_injection || flags.fault_injection;
  if (!flags.handshake.empty() && config.pools.size() > 1) {
    std::cerr << "--handshake: the configuration has " << config.pools.size() << " pools, set it there\n";
    return 2;
  }
  if (!flags.handshake.empty())
    config.pools[0].handshake = flags.handshake;
  if (!flags.advertise.empty())
    for (auto& pool : config.pools)
      pool.advertise = flags.advertise;
  if (flags.ranks > 0) {
    for (auto& pool : config.pools) {
      pool.options.ranks_awaited = static_cast<std::uint16_t>(flags.ranks);
      pool.options.ranks_max = std::max(pool.options.ranks_max, pool.options.ranks_awaited);
    }
  }
  if (!flags.policy.empty()) {
    for (auto& pool : config.pools)
      pool.options.policy = flags.policy;
  }
  if (auto errors = check_config(config); !errors.empty()) {
    for (const auto& error : errors)
      std::cerr << error << "\n";
    return 2;
  }
  if (flags.check) {
    std::cout << "the configuration is good: " << config.pools.size() << " pool(s)\n";
    return 0;
  }

  // Logs go to standard error: standard output is for the lines that scripts wait for.
  constexpr std::uint32_t log_lines_per_s_max = 1000; // of one kind
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "rankwise",
      std::make_shared<limited_log_sink>(std::make_shared<spdlog::sinks::stderr_sink_mt>(), log_lines_per_s_max)));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  std::unique_ptr<node> running;
  try {
    running = std::make_unique<node>(config);
  } catch (const std::exception& e) {
    std::cerr << "rankwise node: " << e.what() << "\n";
    return 2;
  }
  std::cout << "grpc=" << running->grpc_address() << "\n"
            << "admin=" << running->admin_address() << "\n";
  for (std::size_t i = 0; i < config.pools.size(); ++i)
    std::cout << "handshake=" << config.pools[i].options.name << ":" << running->handshake_endpoint(i) << "\n";
  std::cout << std::flush;
  // The service is up from here on; that its ranks are in is said by the status, and by /readyz.
  sd_notify(0, "READY=1\nSTATUS=waiting for ranks");
  bool said_ready = false;
  const auto ready_until = std::chrono::steady_clock::now() + std::chrono::duration<double>(config.ready_max_s);
  for (;;) {
    const timespec wait{0, said_ready ? 200'000'000 : 10'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (signal == SIGTERM || signal == SIGINT)
      break;
    if (!said_ready && running->ready()) {
      said_ready = true;
      std::cout << "READY" << std::endl;
      sd_notify(0, "STATUS=ready");
    }
    if (!said_ready && config.ready_max_s > 0 && std::chrono::steady_clock::now() > ready_until) {
      std::cerr << fmt::format("rankwise node: not ready after {} s: {}\n", config.ready_max_s,
                               running->not_ready_reason());
      running->stop();
      return 1;
    }
    if (const auto reason = running->fatal_reason(); !reason.empty()) {
      std::cerr << "rankwise node: " << reason << "\n";
      running->stop();
      return 1;
    }
  }
  sd_notify(0, "STOPPING=1\nSTATUS=draining");
  return drain_and_stop(*running, config.drain_s, signals);
}

} // namespace

void add_node_command(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("node", "Run a node: gRPC in front, engine ranks behind");
  auto flags = std::make_shared<node_flags>();
  sub->add_option("--config", flags->config, "TOML file; without one the defaults: one unified pool on loopback");
  sub->add_option("--grpc", flags->grpc, "host:port of the gRPC front (default 127.0.0.1:30001)");
  sub->add_option("--handshake", flags->handshake, "endpoint where ranks dial in, tcp://host:port or ipc://path");
  sub->add_option("--advertise", flags->advertise,
                  "host that ranks are told to connect to, e.g. with tcp://0.0.0.0:30010");
  sub->add_option("--ranks", flags->ranks, "ranks that are awaited before the node is ready")
      ->transform(whole_number(1, 1024));
  sub->add_option("--model-path", flags->model_path,
                  "folder of the model, whose tokenizer a gateway loads (default: what the ranks register)");
  sub->add_option("--served-model-name", flags->served_model_name,
                  "name by which clients ask for the model (default: what the ranks register, else the model path)");
  sub->add_option("--policy", flags->policy, "placement policy of every pool (default headroom)");
  sub->add_option("--admin", flags->admin, "host:port of the admin HTTP (default 127.0.0.1:30002)");
  sub->add_option("--state", flags->state,
                  "folder for sockets and state: with it a restarted node has its running ranks back");
  sub->add_option("--history", flags->history, "write every request's history to this file");
  sub->add_option("--decision-log", flags->decisions,
                  "write every input and decision of the controllers to this file, for replay-decisions");
  sub->add_option("--log-level", flags->log_level, "debug, info, warn, error or off");
  sub->add_flag("--check", flags->check, "validate the configuration and exit");
  sub->add_flag("--fault-injection", flags->fault_injection, "accept POST /fault/crash on the admin address");
  sub->add_flag("--no-load-forwarding", flags->no_load_forwarding, "leave load reports on the board: for comparison");
  sub->footer("Example: rankwise node --ranks 8 --grpc 127.0.0.1:30001 --handshake tcp://127.0.0.1:30010\n"
              "Stops after a drain at SIGTERM or SIGINT; a second one ends what is open at once.\n"
              "Exit codes: 0 stopped, 1 cannot go on, 2 bad configuration, 4 a second signal cut open streams.");
  sub->callback([flags, &exit_code] { exit_code = run_node(*flags); });
}

void add_config_command(CLI::App& app, int& exit_code) {
  auto* config = app.add_subcommand("config", "A node's configuration");
  config->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, bool shows) {
    auto* sub = config->add_subcommand(name, what);
    auto file = std::make_shared<std::string>();
    auto* option = sub->add_option("FILE", *file, shows ? "TOML; without one the defaults" : "TOML");
    if (!shows)
      option->required();
    sub->footer(std::string{"Example: rankwise config "} + name + " /etc/rankwise/node.toml");
    sub->callback([=, &exit_code] {
      std::ostringstream text;
      if (!file->empty()) {
        std::ifstream in{*file};
        if (!(text << in.rdbuf())) {
          std::cerr << *file << ": cannot be read\n";
          exit_code = 2;
          return;
        }
      }
      const auto result = effective_config(text.str(), *file);
      exit_code = result ? 0 : 2;
      if (!result)
        for (const auto& error : result.error())
          std::cerr << error << "\n";
      else if (shows)
        std::cout << *result;
      else
        std::cout << *file << ": good\n";
    });
  };
  add("check", "Whether a file is good", false);
  add("show", "Every key with the value that would hold", true);
}

void add_history_command(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("check-history", "Check the promises of a node's history file");
  auto file = std::make_shared<std::string>();
  sub->add_option("FILE", *file, "written by rankwise node --history")->required();
  sub->callback([file, &exit_code] {
    try {
      const auto verdict = check_history(*file);
      for (const auto& violation : verdict.violations)
        std::cout << violation << "\n";
      std::cout << verdict.events << " events, " << verdict.accepted << " accepted, " << verdict.ended << " ended, "
                << verdict.violations.size() << " violations\n";
      exit_code = verdict.violations.empty() ? 0 : 1;
    } catch (const std::exception& e) {
      std::cerr << e.what() << "\n";
      exit_code = 2;
    }
  });
}

} // namespace rankwise::app
