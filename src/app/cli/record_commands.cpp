#include "app/cli/node_client.hpp"
#include "app/cli/view_commands.hpp"
#include "app/options/option_checks.hpp"
#include "record/decision_replay.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

namespace rankwise::app {

namespace {

using nlohmann::json;

std::atomic<bool> interrupted{false};

struct record_options {
  std::string output;
  double duration_s = 0;
};

/// Times of the file begin at 0 with the first request that the node names.
int record(const node_client& client, const record_options& options) {
  std::ofstream file{options.output};
  if (!file) {
    std::cerr << "rankwise record: --output: cannot write " << options.output << "\n";
    return exit_bad_usage;
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  std::signal(SIGTERM, [](int) { interrupted = true; });
  const auto begin = std::chrono::steady_clock::now();
  const auto over = [&] {
    return interrupted || (options.duration_s > 0 && std::chrono::steady_clock::now() - begin >=
                                                         std::chrono::duration<double>(options.duration_s));
  };
  std::optional<std::uint64_t> after;
  std::optional<double> origin;
  std::uint64_t written = 0;
  std::uint64_t lost = 0;
  for (bool last = false, more = false; !last || more;) {
    last = last || over();
    const auto answer = client.get(after ? "/requests/stream?after=" + std::to_string(*after) : "/requests/stream");
    if (answer.exit_code != exit_done)
      return answer.exit_code;
    if (!after) { // what ended before is not asked for
      after = answer.json["last"].get<std::uint64_t>();
      continue;
    }
    if (answer.json["last"].get<std::uint64_t>() < *after) {
      std::cerr << "rankwise record: the node was restarted: the file ends there\n";
      return exit_refused;
    }
    lost += answer.json["lost"].get<std::uint64_t>();
    for (auto line : answer.json["requests"]) {
      if (written == 0)
        file << answer.json["head"].dump() << "\n";
      const auto at = line["arrival_s"].get<double>();
      if (!origin)
        origin = at;
      line["arrival_s"] = at - *origin; // below 0 for one that came earlier and ended later: readers sort
      file << line.dump() << "\n";
      ++written;
    }
    after = answer.json["last"].get<std::uint64_t>();
    if (!file.flush()) {
      std::cerr << "rankwise record: --output: cannot write " << options.output << "\n";
      return exit_bad_usage;
    }
    more = answer.json["more"].get<bool>();
    for (int i = 0; i < 5 && !last && !more && !over(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{100});
  }
  std::cout << fmt::format("{}: {} requests\n", options.output, written);
  if (lost > 0) {
    std::cerr << fmt::format("rankwise record: {} requests more ended faster than they were taken\n", lost);
    return exit_not_in_time;
  }
  return exit_done;
}

void add_record(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("record", "Writes the requests of a running node: lengths, times, hashes of blocks");
  auto client = std::make_shared<node_client>("record");
  client->add_options(*sub, "record --output requests.jsonl --duration 10m && rankwise sim --trace requests.jsonl",
                      false);
  auto options = std::make_shared<record_options>();
  sub->add_option("--output", options->output, "the file, which rankwise sim and replay read as --trace")->required();
  as_duration(sub->add_option("--duration", options->duration_s, "how long; 0 = until interrupted"))
      ->capture_default_str();
  sub->callback([=, &exit_code] { exit_code = record(*client, *options); });
}

json gaps_to_json(const std::vector<record::log_gap>& gaps) {
  auto rows = json::array();
  for (const auto& gap : gaps) {
    auto starts = json::array();
    for (const auto& [controller, line] : gap.next_starts)
      starts.push_back({{"controller", controller}, {"line", line ? json(*line) : json(nullptr)}});
    rows.push_back(
        {{"line", gap.line}, {"what", gap.what}, {"lines_skipped", gap.lines_skipped}, {"next_starts", starts}});
  }
  return rows;
}

void print_gap(const record::log_gap& gap) {
  std::cout << fmt::format("line {}: {}; {} lines were not compared\n", gap.line, gap.what, gap.lines_skipped);
  for (const auto& [controller, line] : gap.next_starts)
    std::cout << fmt::format("  controller {}: {}\n", controller,
                             line ? fmt::format("its next whole start is line {}: compared from there on", *line)
                                  : std::string{"no whole start follows"});
}

int replay(const std::string& file, bool as_json) {
  const auto verdict = record::replay_decisions(std::filesystem::path{file});
  if (!verdict) {
    std::cerr << "rankwise replay-decisions: " << verdict.error() << "\n";
    return exit_bad_usage;
  }
  const auto& d = verdict->difference;
  if (as_json) {
    json j{{"lines", verdict->lines},
           {"lines_skipped", verdict->lines_skipped},
           {"same", verdict->decisions},
           {"by_policy", verdict->by_policy}};
    j["difference"] = d ? json{{"line", d->line}, {"controller", d->controller}, {"handle", d->handle},
                               {"at_s", d->at_s}, {"recorded", d->recorded},     {"replayed", d->replayed}}
                        : json(nullptr);
    j["incomplete"] = verdict->incomplete ? json(*verdict->incomplete) : json(nullptr);
    j["gaps"] = gaps_to_json(verdict->gaps);
    std::cout << j.dump(2) << "\n";
  } else {
    for (const auto& [policy, count] : verdict->by_policy)
      std::cout << fmt::format("{}: {} decisions are the same\n", policy, count);
    if (d)
      std::cout << fmt::format("line {}: the first that differs: request {} at {:.6f} s, controller {}\n"
                               "  recorded: {}\n  replayed: {}\n",
                               d->line, d->handle, d->at_s, d->controller, d->recorded, d->replayed);
    for (const auto& gap : verdict->gaps)
      print_gap(gap);
  }
  return d ? exit_refused : verdict->incomplete ? exit_not_in_time : exit_done;
}

void add_replay_decisions(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("replay-decisions", "Makes the decisions of a decision log again, and compares");
  sub->footer("Example: rankwise node --decision-log decisions.jsonl ... ; rankwise replay-decisions decisions.jsonl\n"
              "Exit codes: 0 all the same, 1 one differs, 2 the file cannot be read, 4 it lacks lines");
  auto file = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  sub->add_option("FILE", *file, "written by rankwise node or sim --decision-log")->required();
  sub->add_flag("--json", *as_json, "as JSON");
  sub->callback([=, &exit_code] { exit_code = replay(*file, *as_json); });
}

} // namespace

void add_record_commands(CLI::App& app, int& exit_code) {
  add_record(app, exit_code);
  add_replay_decisions(app, exit_code);
}

} // namespace rankwise::app
