#include "app/bench/bench_command.hpp"

#include "app/bench/bench_actors.hpp"
#include "app/bench/bench_client.hpp"
#include "app/bench/bench_engine.hpp"
#include "app/bench/bench_measure.hpp"
#include "app/bench/bench_server.hpp"
#include "app/options/option_checks.hpp"
#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"
#include "io/http/admin_server.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <unistd.h>

namespace rankwise::app {

namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int ranks = 8;
constexpr double engine_step_ms = 10; // constant: no jitter, no growth with the batch
constexpr double requests_per_s = 2000;
constexpr std::uint32_t tokens_per_request = 25; // 50,000 tokens/s

struct bench_options {
  std::string json_file;
  std::string only; ///< one group of figures: idle, actors, dispatch or streams
  bool no_fail = false;
  bool quick = false;
  double seconds = 4;
  int rounds = 3;
  [[nodiscard]] double idle_s() const { return quick ? 2 : 10; }
};

enum class server_kind : std::uint8_t { node, grpcpp, bare };

std::string_view to_string(server_kind kind) {
  return kind == server_kind::node ? "node" : kind == server_kind::grpcpp ? "grpcpp" : "bare";
}

/// One server and its ranks.
class installation {
 public:
  explicit installation(server_kind kind) {
    const auto log = folder_.path() + "/server.log";
    const auto number = std::to_string(ranks);
    const std::vector<std::string> arguments =
        kind == server_kind::node
            ? std::vector<std::string>{"node",        "--grpc",      "127.0.0.1:0",        "--admin",
                                       "127.0.0.1:0", "--handshake", "tcp://127.0.0.1:0",  "--ranks",
                                       number,        "--state",     folder_.path() + "/s"}
            : std::vector<std::string>{"bench-server", "--kind",      std::string{to_string(kind)}, "--ranks", number,
                                       "--folder",     folder_.path()};
    server_ = std::make_unique<child_process>(own_program(), arguments, log);
    grpc = wait_for("grpc=", log);
    if (kind == server_kind::node)
      admin = wait_for("admin=", log);
    const auto handshake = wait_for("handshake=", log);
    engine_ = std::make_unique<child_process>(
        own_program(), bench_engine_arguments(handshake.substr(handshake.find(':') + 1), ranks, engine_step_ms),
        folder_.path() + "/engine.log");
    wait_for("READY", log);
  }

  [[nodiscard]] double cpu() const { return cpu_seconds(server_->pid()); }
  /// Ends the server. Of a bench-server: P50 and P99 of its dispatch time, in microseconds.
  std::optional<std::pair<double, double>> end() {
    server_->signal(SIGTERM);
    std::optional<std::pair<double, double>> result;
    if (admin.empty())
      if (const auto line = server_->wait_line("dispatch_us=", std::chrono::seconds{5})) {
        std::pair<double, double> times;
        std::istringstream{*line} >> times.first >> times.second;
        result = times;
      }
    engine_->end(std::chrono::seconds{1});
    server_->end(std::chrono::seconds{1});
    return result;
  }

  std::string grpc;
  std::string admin; ///< of a node only

 private:
  std::string wait_for(const std::string& prefix, const std::string& log) {
    auto rest = server_->wait_line(prefix, std::chrono::seconds{20});
    if (!rest) {
      std::ostringstream text;
      text << std::ifstream{log}.rdbuf();
      throw std::runtime_error("a server did not say \"" + prefix + "\":\n" + text.str());
    }
    return *rest;
  }

  scratch_folder folder_{"rankwise-bench-"};
  std::unique_ptr<child_process> server_;
  std::unique_ptr<child_process> engine_;
};

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// -- figures ---------------------------------------------------------------------------------------------------------

struct figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> reference;
  enum class bound : std::uint8_t { none, ratio, value, ratio_min } on = bound::none;
  double limit = 0;

  [[nodiscard]] std::optional<double> ratio() const {
    return reference && *reference > 0 ? std::optional{value / *reference} : std::nullopt;
  }
  [[nodiscard]] bool holds() const {
    switch (on) {
    case bound::none:
      return true;
    case bound::value:
      return value <= limit;
    case bound::ratio:
      return ratio() && *ratio() <= limit;
    case bound::ratio_min:
      return ratio() && *ratio() >= limit;
    }
    return false;
  }
  [[nodiscard]] std::string target() const {
    return on == bound::none ? ""
                             : fmt::format("{} {} {:g}", on == bound::value ? "value" : "ratio",
                                           on == bound::ratio_min ? ">=" : "<=", limit);
  }
};

json to_json(const std::vector<figure>& figures) {
  auto rows = json::array();
  for (const auto& f : figures)
    rows.push_back({{"name", f.name},
                    {"value", f.value},
                    {"unit", f.unit},
                    {"reference", f.reference ? json(*f.reference) : json(nullptr)},
                    {"ratio", f.ratio() ? json(*f.ratio()) : json(nullptr)},
                    {"target", f.on == figure::bound::none ? json(nullptr) : json(f.target())},
                    {"holds", f.holds()}});
  return rows;
}

void print(const std::vector<figure>& figures) {
  fmt::print("{:<40} {:>10} {:<8} {:>10} {:>7}  {:<14} {}\n", "FIGURE", "VALUE", "UNIT", "REFERENCE", "RATIO", "TARGET",
             "HOLDS");
  for (const auto& f : figures)
    fmt::print("{:<40} {:>10.2f} {:<8} {:>10} {:>7}  {:<14} {}\n", f.name, f.value, f.unit,
               f.reference ? fmt::format("{:.2f}", *f.reference) : "-",
               f.ratio() ? fmt::format("{:.2f}", *f.ratio()) : "-", f.target().empty() ? "-" : f.target(),
               f.on == figure::bound::none ? "-"
               : f.holds()                 ? "yes"
                                           : "NO");
}

// -- 1: streams ------------------------------------------------------------------------------------------------------

struct stream_samples {
  std::vector<double> cpu_us;
  std::vector<double> gap_p50_ms;
  std::vector<double> gap_p99_ms;
  std::vector<double> gap_p99_beyond_step_ms; // what the server may have added: a gap cannot be shorter than a step
  std::vector<double> tokens_per_s;
};

void measure_streams(const bench_options& o, std::uint32_t streams, std::vector<figure>& figures) {
  std::map<server_kind, stream_samples> samples;
  for (int round = 0; round < o.rounds; ++round) {
    for (const auto kind : {server_kind::node, server_kind::grpcpp, server_kind::bare}) {
      installation system{kind};
      bench_streams_options client;
      client.target = system.grpc;
      client.streams = streams;
      client.seconds = o.seconds;
      client.warm_up_s = o.quick ? 1 : 1.5;
      client.cpu = [&] { return system.cpu(); };
      const auto r = run_bench_streams(client);
      if (!r.error.empty() || r.tokens == 0)
        throw std::runtime_error(fmt::format("{} streams at {}: {}", streams, to_string(kind), r.error));
      system.end();
      const auto tokens = static_cast<double>(r.tokens);
      auto& s = samples[kind];
      s.cpu_us.push_back(r.cpu_s / tokens * 1e6);
      s.gap_p50_ms.push_back(r.gap_p50_ms);
      s.gap_p99_ms.push_back(r.gap_p99_ms);
      s.gap_p99_beyond_step_ms.push_back(r.gap_p99_ms - engine_step_ms);
      s.tokens_per_s.push_back(tokens / r.seconds);
      fmt::print(
          "{} streams, round {}, {:<6}: {:7.0f} tokens/s, {:.2f} per chunk, {:6.2f} us CPU per token, gap p50 {:.1f} "
          "p99 {:.1f} ms\n",
          streams, round + 1, to_string(kind), tokens / r.seconds, tokens / static_cast<double>(r.chunks),
          s.cpu_us.back(), r.gap_p50_ms, r.gap_p99_ms);
      std::fflush(stdout);
    }
  }
  const auto add = [&](const std::string& name, auto member, const std::string& unit, server_kind reference,
                       figure::bound on, double limit) {
    figures.push_back({fmt::format("{}_{}_streams", name, streams), median(samples[server_kind::node].*member), unit,
                       median(samples[reference].*member), on, limit});
  };
  using bound = figure::bound;
  add("cpu_per_token", &stream_samples::cpu_us, "us", server_kind::grpcpp, bound::ratio, 0.4);
  add("cpu_per_token_vs_bare", &stream_samples::cpu_us, "us", server_kind::bare, bound::ratio, 2);
  add("gap_p99", &stream_samples::gap_p99_ms, "ms", server_kind::grpcpp, bound::ratio, 0.7);
  add("gap_p99_beyond_step", &stream_samples::gap_p99_beyond_step_ms, "ms", server_kind::grpcpp, bound::ratio, 0.7);
  add("gap_p99_vs_bare", &stream_samples::gap_p99_ms, "ms", server_kind::bare, bound::none, 0);
  add("gap_p50", &stream_samples::gap_p50_ms, "ms", server_kind::grpcpp, bound::none, 0);
  add("throughput", &stream_samples::tokens_per_s, "tokens/s", server_kind::grpcpp, bound::none, 0);
}

// -- 2: accepted to dispatched ---------------------------------------------------------------------------------------

/// Upper bound -> observations up to it, of rankwise_dispatch_seconds.
using buckets = std::map<double, double>;

buckets read_buckets(const std::string& admin) {
  const auto answer = io::http_get(admin, "/metrics", 2);
  buckets result;
  std::istringstream lines{answer.body};
  const std::string prefix = "rankwise_dispatch_seconds_bucket{le=\"";
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(prefix))
      continue;
    const auto bound = line.substr(prefix.size(), line.find('"', prefix.size()) - prefix.size());
    result[bound == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(bound)] =
        std::stod(line.substr(line.rfind(' ') + 1));
  }
  if (result.empty())
    throw std::runtime_error("/metrics has no rankwise_dispatch_seconds: " + answer.body.substr(0, 200));
  return result;
}

/// In microseconds, interpolated inside its bucket.
double quantile_us(const buckets& before, const buckets& after, double q) {
  const auto count_at = [&](double bound) { return after.at(bound) - before.at(bound); };
  const double wanted = q * count_at(after.rbegin()->first);
  double lower = 0;
  double below = 0;
  for (const auto& [bound, ignored] : after) {
    const double here = count_at(bound);
    if (here >= wanted)
      return std::isinf(bound)
                 ? 1e6 * lower
                 : 1e6 * (lower + (bound - lower) * (here > below ? (wanted - below) / (here - below) : 1));
    lower = bound;
    below = here;
  }
  return 1e6 * lower;
}

void measure_dispatch(const bench_options& o, std::vector<figure>& figures) {
  constexpr double warm_up_s = 1;
  const auto count = static_cast<std::uint32_t>(requests_per_s * (o.seconds + warm_up_s));
  std::map<server_kind, std::pair<std::vector<double>, std::vector<double>>> samples;
  for (int round = 0; round < o.rounds; ++round) {
    for (const auto kind : {server_kind::node, server_kind::grpcpp}) {
      installation system{kind};
      bench_arrivals_options client;
      client.target = system.grpc;
      client.rid_prefix = "bench-" + std::to_string(round);
      client.requests = count;
      client.requests_per_s = requests_per_s;
      client.tokens = tokens_per_request;
      buckets before;
      std::thread reader;
      if (kind == server_kind::node)
        reader = std::thread{[&] {
          std::this_thread::sleep_for(std::chrono::duration<double>{warm_up_s});
          try {
            before = read_buckets(system.admin);
          } catch (const std::exception&) {
            before.clear();
          }
        }};
      const auto result = run_bench_arrivals(client);
      if (reader.joinable())
        reader.join();
      if (!result.error.empty() || result.completed != count)
        throw std::runtime_error(fmt::format("dispatch at {}: {} of {} requests completed {}", to_string(kind),
                                             result.completed, count, result.error));
      double p50 = 0;
      double p99 = 0;
      if (kind == server_kind::node) {
        if (before.empty())
          throw std::runtime_error("the node's /metrics could not be read");
        const auto after = read_buckets(system.admin);
        p50 = quantile_us(before, after, 0.5);
        p99 = quantile_us(before, after, 0.99);
        system.end();
      } else {
        const auto times = system.end();
        if (!times)
          throw std::runtime_error("the reference server gave no dispatch times");
        p50 = times->first;
        p99 = times->second;
      }
      samples[kind].first.push_back(p50);
      samples[kind].second.push_back(p99);
      fmt::print("{:.0f} requests/s, round {}, {:<6}: dispatched p50 {:.0f} p99 {:.0f} us; requests left {:.2f} ms "
                 "late (p99)\n",
                 requests_per_s, round + 1, to_string(kind), p50, p99, result.late_p99_ms);
      std::fflush(stdout);
    }
  }
  figures.push_back({"dispatch_p50", median(samples[server_kind::node].first), "us",
                     median(samples[server_kind::grpcpp].first), figure::bound::value, 100});
  figures.push_back({"dispatch_p99", median(samples[server_kind::node].second), "us",
                     median(samples[server_kind::grpcpp].second), figure::bound::value, 1000});
}

// -- 3: idle ---------------------------------------------------------------------------------------------------------

void measure_idle(const bench_options& o, std::vector<figure>& figures) {
  installation node{server_kind::node};
  installation reference{server_kind::grpcpp};
  std::this_thread::sleep_for(std::chrono::seconds{2});
  const auto start = std::chrono::steady_clock::now();
  const auto node_before = node.cpu();
  const auto reference_before = reference.cpu();
  std::this_thread::sleep_for(std::chrono::duration<double>{o.idle_s()});
  const auto node_used = node.cpu() - node_before;
  const auto reference_used = reference.cpu() - reference_before;
  const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  node.end();
  reference.end();
  figures.push_back({fmt::format("idle_{}_ranks", ranks), 100 * node_used / elapsed, "% core",
                     100 * reference_used / elapsed, figure::bound::value, 1});
}

// -- 4: actors beside the same adapters without actors
// ------------------------------------------------------------------

constexpr double paced_requests_per_s = 5000;

void note(actor_handlers& total, const actor_handlers& more) {
  total.handled += more.handled;
  total.slow += more.slow;
  total.longest_ms = std::max(total.longest_ms, more.longest_ms);
}

void measure_actors(const bench_options& o, std::vector<figure>& figures) {
  using bound = figure::bound;
  actor_handlers handlers;
  for (const std::uint32_t prompt_tokens : {128U, 2048U}) {
    struct samples {
      std::vector<double> rate, cpu_us, dispatch_p50_us, dispatch_p99_us, answer_p50_us, answer_p99_us;
    };
    std::map<path_kind, samples> of;
    for (int round = 0; round < o.rounds; ++round) {
      for (const auto& [kind, name] : {std::pair{path_kind::actors, "actors"},
                                       {path_kind::one_hand_over, "one hand-over"},
                                       {path_kind::calls, "no actors"}}) {
        path_options p;
        p.kind = kind;
        p.ranks = ranks;
        p.prompt_tokens = prompt_tokens;
        p.requests = o.quick ? 4000 : prompt_tokens > 1000 ? 20'000 : 60'000;
        const auto full = run_path(p);
        p.requests_per_s = paced_requests_per_s;
        p.requests = static_cast<std::uint32_t>(paced_requests_per_s * o.seconds);
        const auto paced = run_path(p);
        auto& s = of[kind];
        s.rate.push_back(full.requests_per_s);
        s.cpu_us.push_back(full.cpu_us);
        s.dispatch_p50_us.push_back(paced.dispatch_p50_us);
        s.dispatch_p99_us.push_back(paced.dispatch_p99_us);
        s.answer_p50_us.push_back(paced.answer_p50_us);
        s.answer_p99_us.push_back(paced.answer_p99_us);
        note(handlers, full.handlers);
        note(handlers, paced.handlers);
        fmt::print(
            "{} B prompts, round {}, {:<13}: {:6.0f} requests/s, {:5.1f} us CPU each; at {:.0f}/s dispatched p50 "
            "{:.0f} p99 {:.0f} us, answered p50 {:.0f} p99 {:.0f} us\n",
            prompt_tokens * 4, round + 1, name, full.requests_per_s, full.cpu_us, paced_requests_per_s,
            paced.dispatch_p50_us, paced.dispatch_p99_us, paced.answer_p50_us, paced.answer_p99_us);
        std::fflush(stdout);
      }
    }
    const auto add = [&](const std::string& name, auto member, const std::string& unit, bound on, double limit,
                         path_kind reference = path_kind::calls) {
      figures.push_back({fmt::format("actors_{}_{}B", name, prompt_tokens * 4), median(of[path_kind::actors].*member),
                         unit, median(of[reference].*member), on, limit});
    };
    add("rate", &samples::rate, "req/s", bound::ratio_min, 0.6);
    add("cpu_per_request", &samples::cpu_us, "us", bound::none, 0);
    add("answer_p50_at_5000", &samples::answer_p50_us, "us", bound::none, 0);
    add("answer_p99_at_5000", &samples::answer_p99_us, "us", bound::ratio, 2);
    add("dispatch_p50_at_5000", &samples::dispatch_p50_us, "us", bound::none, 0);
    add("dispatch_p99_at_5000", &samples::dispatch_p99_us, "us", bound::ratio, 2);
    add("dispatch_p99_vs_one_hand_over", &samples::dispatch_p99_us, "us", bound::none, 0, path_kind::one_hand_over);
  }
  const auto held = run_in_flight(ranks, o.quick ? 10'000 : 100'000, 128);
  note(handlers, held.handlers);
  figures.push_back({fmt::format("in_flight_{}_memory", held.requests), held.bytes_per_request, "B/request",
                     std::nullopt, bound::none, 0});
  figures.push_back({"handler_longest", handlers.longest_ms, "ms", std::nullopt, bound::value, 25});
  figures.push_back(
      {"handlers_over_500us",
       100 * static_cast<double>(handlers.slow) / static_cast<double>(std::max<std::uint64_t>(handlers.handled, 1)),
       "%", std::nullopt, bound::value, 0.1});
  for (const int count : {8, 64, 512, 1024})
    figures.push_back({fmt::format("placement_{}_ranks", count),
                       placement_ns(static_cast<std::uint16_t>(count), o.quick ? 2000 : 50'000), "ns", std::nullopt,
                       bound::none, 0});
}

// --------------------------------------------------------------------------------------------------------------------

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
