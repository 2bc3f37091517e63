#include "app/demo/demo_command.hpp"

#include "app/demo/demo_faults.hpp"
#include "app/demo/kv_plot.hpp"
#include "app/node/history_file.hpp"
#include "app/options/option_checks.hpp"
#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"
#include "app/replay/replay_client.hpp"
#include "app/replay/replay_command.hpp"
#include "io/http/admin_server.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <unistd.h>

namespace rankwise::app {

namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct demo_options {
  workload_choice workload;
  std::string policy = "headroom";
  std::uint16_t prefill_ranks = 4;
  std::uint16_t decode_ranks = 8;
  std::uint64_t kv_tokens = 524'288;
  bool load_forwarding = true;
  bool lift_restart_limit = false;
  bool no_fail = false;
  bool compare = false;
  std::string json_file;
  std::string plot_file;
  std::vector<std::string> fault_texts;
};

/// A folder that goes when the run is over.
struct rank_figures {
  std::string pool;
  int rank = 0;
  std::string state;
  std::uint64_t placements = 0;
  std::uint32_t requests = 0;
  std::uint64_t tokens = 0;
  double kv_now = 0;
  double report_age_s = -1;
  double kv_sum = 0;
  double kv_max = 0;
  std::uint64_t samples = 0;
  kv_series series;
};

struct demo_outcome {
  replay_result replay;
  std::map<std::pair<std::string, int>, rank_figures> ranks;
  json actors;
  history_verdict history;
};

/// Of prefill rank 0; those of the others follow it. Ours alone while this process lives.
int bootstrap_port() {
  return 20'000 + ::getpid() % 20'000;
}

std::string node_toml(const demo_options& o, const std::string& folder) {
  std::string text = fmt::format("[node]\ngrpc = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstate_dir = \"{0}/s\"\n"
                                 "history_file = \"{0}/history.txt\"\nfault_injection = true\ndrain_s = 5\n"
                                 "[load]\nforwarding = {1}\n[supervision]\nforwarder_restarts_max = {2}\n",
                                 folder, o.load_forwarding, o.lift_restart_limit ? 0 : 5);
  const auto pool = [&](const char* role, int ranks) {
    text += fmt::format("[[pool]]\nrole = \"{}\"\nhandshake = \"tcp://127.0.0.1:0\"\nranks = {}\npolicy = \"{}\"\n"
                        "bootstrap_port = {}\n",
                        role, ranks, o.policy, bootstrap_port());
  };
  pool("prefill", o.prefill_ranks);
  pool("decode", o.decode_ranks);
  return text;
}

/// Everything that runs: the node, and one engine process per rank.
class cluster {
 public:
  explicit cluster(const demo_options& o) {
    {
      std::ofstream config{folder_.path() + "/node.toml"};
      config << node_toml(o, folder_.path());
    }
    node_ = std::make_unique<child_process>(own_program(),
                                            std::vector<std::string>{"node", "--config", folder_.path() + "/node.toml"},
                                            folder_.path() + "/node.log");
    const auto wait = std::chrono::seconds{20};
    const auto line = [&](const std::string& prefix) {
      auto rest = node_->wait_line(prefix, wait);
      if (!rest)
        throw std::runtime_error("the node did not start:\n" + log());
      return *rest;
    };
    grpc = line("grpc=");
    admin = line("admin=");
    const auto prefill = line("handshake=prefill:");
    const auto decode = line("handshake=decode:");
    const auto engine = [&](const char* role, const std::string& handshake, int rank, int ranks) {
      std::vector<std::string> arguments{"engine",
                                         "--handshake",
                                         handshake,
                                         "--ranks",
                                         "1",
                                         "--first-rank",
                                         std::to_string(rank),
                                         "--dp-size",
                                         std::to_string(ranks),
                                         "--role",
                                         role,
                                         "--prefill-ranks",
                                         std::to_string(o.prefill_ranks),
                                         "--kv-tokens",
                                         std::to_string(o.kv_tokens),
                                         "--die-with-parent"};
      if (std::string_view{role} == "prefill") {
        arguments.emplace_back("--bootstrap-port");
        arguments.push_back(std::to_string(bootstrap_port()));
      }
      engines_.emplace(
          std::pair{std::string{role}, rank},
          child_process{own_program(), arguments, folder_.path() + "/engine-" + role + std::to_string(rank) + ".log"});
    };
    for (int i = 0; i < o.prefill_ranks; ++i)
      engine("prefill", prefill, i, o.prefill_ranks);
    for (int i = 0; i < o.decode_ranks; ++i)
      engine("decode", decode, i, o.decode_ranks);
    if (!node_->wait_line("READY", wait))
      throw std::runtime_error("the ranks did not join within 20 s:\n" + log());
  }

  child_process* engine(const std::string& pool, int rank) {
    const auto found = engines_.find({pool, rank});
    return found == engines_.end() ? nullptr : &found->second;
  }

  history_verdict end() {
    const int code = node_->end(std::chrono::seconds{15});
    engines_.clear();
    if (code != 0)
      throw std::runtime_error("the node ended with code " + std::to_string(code) + ":\n" + log());
    return check_history(folder_.path() + "/history.txt");
  }

  /// The last lines of the node's log.
  [[nodiscard]] std::string log() const {
    std::ifstream in{folder_.path() + "/node.log"};
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);)
      lines.push_back(line);
    std::string result;
    for (std::size_t i = lines.size() > 20 ? lines.size() - 20 : 0; i < lines.size(); ++i)
      result += lines[i] + "\n";
    return result;
  }

  std::string grpc;
  std::string admin;

 private:
  scratch_folder folder_{"rankwise-demo-"};
  std::unique_ptr<child_process> node_;
  std::map<std::pair<std::string, int>, child_process> engines_;
};

json fetch(const std::string& admin, const std::string& path) {
  const auto answer = io::http_get(admin, path, 2);
  if (answer.status != 200)
    return nullptr;
  return json::parse(answer.body, nullptr, false);
}

void sample(cluster& c, demo_outcome& out, double at_s) {
  const auto ranks = fetch(c.admin, "/ranks");
  const auto loads = fetch(c.admin, "/v1/loads");
  if (!ranks.is_object() || !loads.is_object())
    return;
  std::map<std::pair<std::string, int>, double> usage;
  for (const auto& l : loads["loads"])
    usage[{l.value("pool", ""), l["dp_rank"].get<int>()}] = l["token_usage"].get<double>();
  for (const auto& pool : ranks["pools"]) {
    const auto name = pool["pool"].get<std::string>();
    for (const auto& r : pool["ranks"]) {
      const auto number = r["rank"].get<int>();
      auto& f = out.ranks[{name, number}];
      f.pool = name;
      f.rank = number;
      f.state = r["state"].get<std::string>();
      f.placements = std::max(f.placements, r["placements"].get<std::uint64_t>());
      f.requests = r["requests"].get<std::uint32_t>();
      f.tokens = r["tokens"].get<std::uint64_t>();
      f.report_age_s = r["report"].is_null() ? -1 : r["report"]["age_s"].get<double>();
      const bool alive = f.state == "ready" || f.state == "suspect";
      f.kv_now = alive ? usage[{name, number}] : 0;
      f.kv_sum += f.kv_now;
      f.kv_max = std::max(f.kv_max, f.kv_now);
      ++f.samples;
      f.series.label = name + "/" + std::to_string(number);
      f.series.at_s.push_back(at_s);
      f.series.share.push_back(f.kv_now);
    }
  }
}

int print_table(const demo_outcome& out, const replay_progress& p) {
  int lines = 0;
  fmt::print("\033[K{:<11} {:<8} {:>8} {:>9} {:>6} {:>7} {:>10}\n", "RANK", "STATE", "REQUESTS", "TOKENS", "KV %",
             "REPORT", "PLACEMENTS");
  ++lines;
  for (const auto& [key, f] : out.ranks) {
    fmt::print("\033[K{:<11} {:<8} {:>8} {:>9} {:>6.1f} {:>7} {:>10}\n", f.pool + "/" + std::to_string(f.rank), f.state,
               f.requests, f.tokens, 100 * f.kv_now,
               f.report_age_s < 0 ? "none" : fmt::format("{:.2f}s", f.report_age_s), f.placements);
    ++lines;
  }
  const auto done = p.completed + p.ended_otherwise;
  const auto share = p.total == 0 ? 0.0 : static_cast<double>(done) / static_cast<double>(p.total);
  const auto filled = static_cast<std::size_t>(40 * share);
  fmt::print("\033[K[{}{}] {}/{} done, {} open, {} tokens, {:.0f} s\n", std::string(filled, '#'),
             std::string(40 - filled, '.'), done, p.total, p.open, p.tokens, p.elapsed_s);
  std::fflush(stdout);
  return lines + 1;
}

void carry_out(cluster& c, const fault_action& action) {
  const auto& f = *action.fault;
  if (action.act == fault_action::what::crash) {
    [[maybe_unused]] const auto sent = io::http_post(
        c.admin,
        "/fault/crash?role=" + f.role + "&pool=" + (f.pool.empty() && f.role == "dp_controller" ? "decode" : f.pool) +
            "&rank=" + std::to_string(f.rank),
        2);
    return;
  }
  auto* engine = c.engine(f.pool, f.rank);
  if (engine == nullptr)
    return;
  engine->signal(action.act == fault_action::what::kill   ? SIGKILL
                 : action.act == fault_action::what::stop ? SIGSTOP
                                                          : SIGCONT);
}

demo_outcome run_once(const demo_options& o, const sim::workload& workload, const std::vector<demo_fault>& faults,
                      bool live) {
  cluster c{o};
  demo_outcome out;
  replay_options client;
  client.target = c.grpc;
  client.seed = o.workload.seed;
  client.rid_prefix = "demo";
  client.silence_s = 30;

  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::mutex mutex; // the sampler writes out.ranks, the watcher prints them
  std::atomic<bool> over{false};
  std::thread sampler{[&] {
    while (!over) {
      demo_outcome next;
      {
        const std::lock_guard guard{mutex};
        next.ranks = out.ranks;
      }
      sample(c, next, elapsed());
      {
        const std::lock_guard guard{mutex};
        out.ranks = std::move(next.ranks);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{250});
    }
  }};
  const auto actions = schedule(faults);
  std::thread injector{[&] {
    for (const auto& action : actions) {
      while (!over && elapsed() < action.at_s)
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
      if (over && action.act != fault_action::what::resume)
        break;
      carry_out(c, action);
    }
  }};
  int printed = 0;
  const auto watch = [&](const replay_progress& p) {
    const std::lock_guard guard{mutex};
    if (printed > 0)
      fmt::print("\033[{}A", printed);
    printed = print_table(out, p);
  };
  out.replay = replay(workload, client, live ? replay_watcher{watch} : replay_watcher{}, 0.5);
  const auto actors = fetch(c.admin, "/actors");
  over = true;
  sampler.join();
  injector.join();
  sample(c, out, elapsed());
  out.actors = json::array();
  if (actors.is_object()) {
    std::map<std::string, std::uint64_t> restarts;
    for (const auto& a : actors["children"])
      restarts[a["role"].get<std::string>()] += a["restarts"].get<std::uint64_t>();
    for (const auto& [role, count] : restarts)
      out.actors.push_back({{"role", role}, {"restarts", count}});
  }
  out.history = c.end();
  return out;
}

json to_json(const demo_outcome& out) {
  json j = app::to_json(out.replay);
  j["ranks"] = json::array();
  for (const auto& [key, f] : out.ranks)
    j["ranks"].push_back({{"pool", f.pool},
                          {"rank", f.rank},
                          {"requests", f.placements},
                          {"kv_mean", f.samples == 0 ? 0.0 : f.kv_sum / static_cast<double>(f.samples)},
                          {"kv_max", f.kv_max}});
  j["actors"] = out.actors;
  return j;
}

bool holds(const demo_outcome& out) {
  return out.replay.holds() && out.history.violations.empty();
}

void print_summary(const demo_outcome& out) {
  fmt::print("{}", summary(out.replay));
  for (const auto& pool : {"prefill", "decode"}) {
    std::vector<double> means;
    std::string list;
    for (const auto& [key, f] : out.ranks) {
      if (f.pool != pool)
        continue;
      means.push_back(f.samples == 0 ? 0.0 : f.kv_sum / static_cast<double>(f.samples));
      list += fmt::format("{}{}", list.empty() ? "" : " ", f.placements);
    }
    const double mean =
        means.empty() ? 0 : std::accumulate(means.begin(), means.end(), 0.0) / static_cast<double>(means.size());
    const double most = means.empty() ? 0 : *std::max_element(means.begin(), means.end());
    fmt::print("{:<8} placements per rank: {}; KV busiest/mean {:.2f}\n", pool, list, mean > 0 ? most / mean : 0.0);
  }
  std::string restarts;
  for (const auto& a : out.actors)
    if (a["restarts"].get<std::uint64_t>() > 0)
      restarts += fmt::format(" {} {}", a["role"].get<std::string>(), a["restarts"].get<std::uint64_t>());
  fmt::print("actor restarts:{}\n", restarts.empty() ? " none" : restarts);
  fmt::print("history: {} accepted, {} ended, {} violations\n", out.history.accepted, out.history.ended,
             out.history.violations.size());
  for (const auto& v : out.history.violations)
    fmt::print("  {}\n", v);
}

int compare(demo_options o, const sim::workload& workload) {
  struct variant {
    const char* name;
    const char* policy;
    bool forwarding;
  };
  json all = json::array();
  bool good = true;
  fmt::print("{:<44} {:>24}  {:>11} {:>9} {:>9}\n", "POLICY", "REQUESTS PER DECODE RANK", "KV max/mean", "TTFT mean",
             "TTFT p99");
  for (const auto& v : {variant{"total_tokens_uncharged, reports dropped", "total_tokens_uncharged", false},
                        variant{"total_tokens_uncharged, reports forwarded", "total_tokens_uncharged", true},
                        variant{"headroom", "headroom", true}}) {
    o.policy = v.policy;
    o.load_forwarding = v.forwarding;
    const auto out = run_once(o, workload, {}, false);
    std::string placements;
    double most = 0;
    double sum = 0;
    int count = 0;
    for (const auto& [key, f] : out.ranks) {
      if (f.pool != "decode")
        continue;
      placements += fmt::format("{}{}", placements.empty() ? "" : " ", f.placements);
      most = std::max(most, f.kv_sum);
      sum += f.kv_sum;
      ++count;
    }
    fmt::print("{:<44} {:>24}  {:>11.2f} {:>8.2f}s {:>8.2f}s\n", v.name, placements, sum > 0 ? most * count / sum : 0.0,
               out.replay.ttft.mean(), out.replay.ttft.percentile(99));
    std::fflush(stdout);
    auto j = to_json(out);
    j["variant"] = v.name;
    all.push_back(std::move(j));
    good = good && holds(out);
  }
  if (!o.json_file.empty())
    std::ofstream{o.json_file} << all.dump(2) << "\n";
  return good || o.no_fail ? 0 : 1;
}

int run_demo(demo_options& o) {
  std::vector<demo_fault> faults;
  for (const auto& text : o.fault_texts) {
    auto fault = parse_fault(text);
    if (!fault) {
      std::cerr << "rankwise demo: " << fault.error() << "\n";
      return 2;
    }
    faults.push_back(std::move(*fault));
  }
  if (o.workload.trace.empty() && o.workload.limit == 0 && o.workload.duration_s <= 0)
    o.workload.limit = o.compare ? 200 : 400;
  const auto workload = choose_workload(o.workload);
  if (!workload) {
    std::cerr << "rankwise demo: " << workload.error() << "\n";
    return 2;
  }
  try {
    if (o.compare)
      return compare(o, *workload);
    fmt::print("{} requests of {} over {:.0f} s; {} prefill and {} decode ranks, policy {}\n",
               workload->requests.size(), workload->name, workload->span_s(), o.prefill_ranks, o.decode_ranks,
               o.policy);
    std::fflush(stdout);
    const auto out = run_once(o, *workload, faults, ::isatty(STDOUT_FILENO) != 0);
    print_summary(out);
    if (!o.json_file.empty())
      std::ofstream{o.json_file} << to_json(out).dump(2) << "\n";
    if (!o.plot_file.empty()) {
      std::vector<kv_series> series;
      for (const auto& [key, f] : out.ranks)
        series.push_back(f.series);
      std::vector<plot_mark> marks;
      for (const auto& f : faults)
        marks.push_back({f.at_s, f.text.substr(0, f.text.find('@'))});
      std::ofstream{o.plot_file} << kv_plot_svg("KV in use per rank, policy " + o.policy, series, marks);
    }
    return holds(out) || o.no_fail ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "rankwise demo: " << e.what() << "\n";
    return 2;
  }
}

} // namespace

void add_demo_command(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand(
      "demo", "The main job on this machine: simulated ranks, a node, and a client that checks every token");
  auto o = std::make_shared<demo_options>();
  add_workload_options(*sub, o->workload);
  sub->add_option("--policy", o->policy, "placement policy of both pools")->capture_default_str();
  sub->add_option("--prefill-ranks", o->prefill_ranks, "ranks of the prefill pool")
      ->transform(whole_number(1, 64))
      ->capture_default_str();
  sub->add_option("--decode-ranks", o->decode_ranks, "ranks of the decode pool")
      ->transform(whole_number(1, 64))
      ->capture_default_str();
  sub->add_option("--kv-tokens", o->kv_tokens, "KV capacity of a rank in tokens")
      ->transform(whole_number<std::uint64_t>(1))
      ->capture_default_str();
  sub->add_option("--fault", o->fault_texts,
                  "e.g. crash:load_forwarder@2s, kill:decode/3@4s, freeze:decode/2@5s+2s (ms, s, m, h; alone it is "
                  "seconds); repeatable");
  sub->add_option("--json", o->json_file, "write all figures to this file");
  sub->add_option("--plot", o->plot_file, "write KV per rank over time to this SVG");
  sub->add_flag("--compare", o->compare, "the failure that this project began with beside its cure");
  sub->add_flag("!--no-load-forwarding", o->load_forwarding, "leave load reports where they are");
  sub->add_flag("--lift-restart-limit", o->lift_restart_limit, "restart the LoadForwarder as often as it crashes");
  sub->add_flag("--no-fail", o->no_fail, "exit with 0 also when a request was lost or a token wrong");
  sub->footer("Example: rankwise demo --fault kill:decode/3@4s --plot kv.svg --json figures.json");
  sub->callback([o, &exit_code] { exit_code = run_demo(*o); });
}

} // namespace rankwise::app
