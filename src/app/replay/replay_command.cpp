#include "app/replay/replay_command.hpp"

#include "app/options/option_checks.hpp"
#include "app/replay/replay_client.hpp"
#include "sim/built_in_workloads.hpp"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace rankwise::app {

namespace {

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free); // it is set in a signal handler

struct parsed_options {
  workload_choice workload;
  replay_options client;
  int pin = -1;
  std::string json_file;
  bool no_fail = false;
  bool quiet = false;
};

void show(const replay_progress& p) {
  std::fprintf(stderr, "\r%6.1f s  %llu/%llu sent, %llu open, %llu completed, %llu other, %llu tokens  ", p.elapsed_s,
               static_cast<unsigned long long>(p.sent), static_cast<unsigned long long>(p.total),
               static_cast<unsigned long long>(p.open), static_cast<unsigned long long>(p.completed),
               static_cast<unsigned long long>(p.ended_otherwise), static_cast<unsigned long long>(p.tokens));
}

int run(parsed_options& parsed) {
  const auto workload = choose_workload(parsed.workload);
  if (!workload) {
    std::fprintf(stderr, "rankwise replay: %s\n", workload.error().c_str());
    return 2;
  }
  parsed.client.seed = parsed.workload.seed;
  parsed.client.stop = &stop_asked;
  if (parsed.pin >= 0) {
    parsed.client.data_parallel_rank = parsed.pin;
  }
  std::signal(SIGINT, [](int) { stop_asked = true; });
  std::signal(SIGTERM, [](int) { stop_asked = true; });
  const bool live = !parsed.quiet && isatty(STDERR_FILENO) != 0;
  const auto result = replay(*workload, parsed.client, live ? replay_watcher(&show) : replay_watcher());
  if (live) {
    std::fputs("\n", stderr);
  }
  if (!parsed.quiet) {
    std::fputs(summary(result).c_str(), stdout);
  }
  if (!parsed.json_file.empty()) {
    std::ofstream file(parsed.json_file);
    file << to_json(result).dump(2) << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "rankwise replay: cannot write %s\n", parsed.json_file.c_str());
      return 2;
    }
  }
  const auto unreachable = result.failures.find("grpc_unavailable");
  if (unreachable != result.failures.end() && unreachable->second == result.accepted()) {
    std::fprintf(stderr, "rankwise replay: nobody answered at %s\n", parsed.client.target.c_str());
    return 2;
  }
  return result.holds() || parsed.no_fail ? 0 : 1;
}

} // namespace

void add_workload_options(CLI::App& command, workload_choice& choice) {
  auto* const trace = command.add_option(
      "--trace", choice.trace,
      "Mooncake jsonl, Azure 2023 csv, ServeGen folder, or csv arrival_s,input_tokens,output_tokens");
  const auto& names = sim::built_in_workload_names;
  command
      .add_option("--workload", choice.workload,
                  "Without a trace: mixed lengths, the same with giants, shared system prompts, agents (sessions with "
                  "growing context), or a closed loop of clients with one request at a time")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(names), std::end(names))))
      ->excludes(trace)
      ->capture_default_str();
  command
      .add_option("--giant-every", choice.giant_every, "giants: one request of so many has a prompt of 100,000 tokens")
      ->transform(whole_number<std::size_t>(1))
      ->capture_default_str();
  command.add_option("--clients", choice.clients, "closed-loop: clients")
      ->transform(whole_number(1, 1'000'000))
      ->capture_default_str();
  as_duration(command.add_option(
      "--think-s", choice.think_s,
      "agents, closed-loop: mean time, before --speed, from the end of a request to the client's next; 2s "
      "by default"));
  command.add_option("--speed", choice.speed, "Arrivals come this many times faster")
      ->transform(number_above(0))
      ->capture_default_str();
  command
      .add_option("--limit", choice.limit,
                  "At most this many requests; 0 = all of a trace, 1000 of a built-in workload")
      ->transform(whole_number<std::size_t>())
      ->capture_default_str();
  as_duration(command.add_option("--duration", choice.duration_s,
                                 "Only what arrives within this time from the run's start; 0 = all"))
      ->capture_default_str();
  command
      .add_option("--rate", choice.requests_per_s,
                  "Requests a second of a built-in workload, before --speed; not of a closed loop")
      ->transform(number_above(0))
      ->capture_default_str();
  command.add_option("--seed", choice.seed, "Seed of everything left to chance")
      ->transform(whole_number<std::uint64_t>())
      ->capture_default_str();
}

tl::expected<sim::workload, std::string> choose_workload(const workload_choice& choice) {
  sim::workload_limits limits;
  limits.speed = choice.speed;
  if (choice.limit > 0) {
    limits.requests = choice.limit;
  }
  if (choice.duration_s > 0) {
    limits.duration_s = choice.duration_s;
  }
  if (choice.trace.empty()) {
    if (choice.is_closed_loop() && choice.duration_s > 0) {
      return tl::unexpected(
          std::string("--duration: a closed loop's requests come as fast as they are answered; choose their "
                      "number with --limit"));
    }
    sim::built_in_choice built_in;
    built_in.requests_per_s = choice.requests_per_s;
    built_in.seed = choice.seed;
    built_in.giant_every = choice.giant_every;
    built_in.clients = choice.clients;
    built_in.think_s = choice.think_s;
    if (choice.limit > 0) {
      built_in.requests = choice.limit;
    } else if (choice.duration_s > 0) {
      // A tenth more than expected, so that chance does not leave the end of the time empty.
      built_in.requests =
          static_cast<std::size_t>(choice.duration_s * choice.speed * choice.requests_per_s * 1.1) + 100;
    }
    auto drawn = sim::built_in_workload(choice.workload, built_in);
    if (!drawn) {
      return tl::unexpected("--workload: \"" + choice.workload + "\" is no built-in workload");
    }
    return sim::limited(std::move(*drawn), limits);
  }
  auto loaded = sim::load_workload(choice.trace, choice.seed, limits);
  if (!loaded) {
    return tl::unexpected(sim::to_string(loaded.error()));
  }
  return std::move(*loaded);
}

void add_replay_command(CLI::App& app, int& exit_code) {
  auto* const command = app.add_subcommand("replay", "Play a workload against a running node and check every token");
  const auto parsed = std::make_shared<parsed_options>();
  command->add_option("--target", parsed->client.target, "Address of the node's gRPC front")->capture_default_str();
  add_workload_options(*command, parsed->workload);
  command->add_option("--channels", parsed->client.channels, "HTTP/2 connections")
      ->transform(whole_number(1, 1024))
      ->capture_default_str();
  command->add_option("--streams", parsed->client.streams_max, "Most requests at once")
      ->transform(whole_number<std::size_t>(1))
      ->capture_default_str();
  command->add_option("--rid-prefix", parsed->client.rid_prefix, "Beginning of every request id")
      ->capture_default_str();
  command->add_option("--pin", parsed->pin, "Pin every request to this rank")->transform(whole_number<int>());
  as_duration(
      command->add_option("--deadline", parsed->client.deadline_s, "How long each request may take; 0 = no limit"))
      ->capture_default_str();
  as_duration(command->add_option("--silence", parsed->client.silence_s,
                                  "Without any token for so long, open requests are lost"),
              {.least_s = 1e-3})
      ->capture_default_str();
  command->add_option("--json", parsed->json_file, "Write all figures to this file");
  command->add_flag("--no-fail", parsed->no_fail, "Exit with 0 also when a request was lost or a token wrong");
  command->add_flag("--quiet", parsed->quiet, "Print nothing");
  command->footer(
      "Exit codes: 0, 1 a request was lost or a token wrong, 2 the workload cannot be read or nobody answered.");
  command->callback([parsed, &exit_code] { exit_code = run(*parsed); });
}

} // namespace rankwise::app
