#include "app/cli/view_commands.hpp"

#include "io/http/admin_server.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>

namespace rankwise::app {

namespace {

using json = nlohmann::ordered_json;

struct view_flags {
  std::string admin = "127.0.0.1:30002";
  bool as_json = false;
  int limit = 20;
};

void print_status(const json& j) {
  fmt::print("{}{}\n", j["ready"].get<bool>() ? "ready" : "not ready: " + j["not_ready_reason"].get<std::string>(),
             j["degraded"].get<bool>() ? ", degraded: " + j["degraded_reason"].get<std::string>() : "");
  for (const auto& p : j["pools"])
    fmt::print("pool {:<10} {} of {} ranks up, policy {}\n", p["pool"].get<std::string>(), p["ranks_up"].get<int>(),
               p["ranks_awaited"].get<int>(), p["policy"].get<std::string>());
  const auto& r = j["requests"];
  fmt::print("requests: {} in flight, {} accepted, {} completed, {} failed, {} cancelled, {} refused, {} moved\n",
             r["in_flight"].get<std::uint64_t>(), r["accepted"].get<std::uint64_t>(),
             r["completed"].get<std::uint64_t>(), r["failed"].get<std::uint64_t>(), r["cancelled"].get<std::uint64_t>(),
             r["refused"].get<std::uint64_t>(), r["moved"].get<std::uint64_t>());
  for (const auto& [reason, count] : j["reasons"].items())
    fmt::print("  {:<28} {}\n", reason, count.get<std::uint64_t>());
}

void print_actor(const json& a, const std::string& indent) {
  fmt::print("{:<32} {:<14} {:>7} {:>10} {:>8} {:>10.3f} {}\n",
             indent + a["role"].get<std::string>() + (a.value("name", "").empty() ? "" : " " + a.value("name", "")),
             a["state"].get<std::string>(), a.value("mailbox_depth", 0), a.value("handled", std::uint64_t{0}),
             a.value("restarts", 0), a.value("longest_handler_ms", 0.0), a.value("last_error", ""));
}

void print_actors(const json& j) {
  fmt::print("{:<32} {:<14} {:>7} {:>10} {:>8} {:>10} {}\n", "ACTOR", "STATE", "MAILBOX", "HANDLED", "RESTARTS",
             "LONGEST ms", "LAST ERROR");
  print_actor(j, "");
  for (const auto& a : j["children"])
    print_actor(a, "  ");
}

void print_ranks(const json& j) {
  fmt::print("{:<12} {:<9} {:>5} {:>8} {:>9} {:>8} {:>6} {:>10} {:>7}\n", "RANK", "STATE", "EPOCH", "REQUESTS",
             "TOKENS", "PREFILL", "KV %", "PLACEMENTS", "REPORT");
  for (const auto& p : j["pools"])
    for (const auto& r : p["ranks"])
      fmt::print("{:<12} {:<9} {:>5} {:>8} {:>9} {:>8} {:>6.1f} {:>10} {:>7}\n",
                 p["pool"].get<std::string>() + "/" + std::to_string(r["rank"].get<int>()),
                 r["state"].get<std::string>(), r["epoch"].get<int>(), r["requests"].get<int>(),
                 r["tokens"].get<std::uint64_t>(), r["prefill_tokens"].get<std::uint64_t>(),
                 100 * r["kv_share"].get<double>(), r["placements"].get<std::uint64_t>(),
                 r["report"].is_null() ? "none" : fmt::format("{:.2f}s", r["report"]["age_s"].get<double>()));
}

void print_requests(const json& j) {
  fmt::print("{} in flight\n", j["in_flight"].get<std::uint64_t>());
  fmt::print("{:<36} {:<11} {:>7} {:>5} {:>8} {:>9} {:>8}\n", "RID", "STAGE", "PREFILL", "RANK", "PROMPT", "GENERATED",
             "AGE s");
  const auto rank = [](const json& r) { return r.is_null() ? std::string{"-"} : std::to_string(r.get<int>()); };
  for (const auto& r : j["requests"])
    fmt::print("{:<36.36} {:<11} {:>7} {:>5} {:>8} {:>9} {:>8.2f}\n", r["rid"].get<std::string>(),
               r["stage"].get<std::string>(), rank(r["prefill_rank"]), rank(r["rank"]),
               r["prompt_tokens"].get<std::uint64_t>(), r["completion_tokens"].get<std::uint64_t>(),
               r["age_s"].get<double>());
}

template <class Print>
void add_view(CLI::App& app, int& exit_code, const char* name, const char* what, std::string path, Print print) {
  auto* sub = app.add_subcommand(name, what);
  auto flags = std::make_shared<view_flags>();
  sub->add_option("--admin", flags->admin, "the node's admin address")->capture_default_str();
  sub->add_flag("--json", flags->as_json, "the answer as it came");
  if (path == "/requests")
    sub->add_option("--limit", flags->limit, "most rows")->check(CLI::Range(1, 10'000))->capture_default_str();
  sub->footer(std::string{"Example: rankwise "} + name + " --admin 127.0.0.1:30002");
  sub->callback([=, &exit_code] {
    const auto full = path == "/requests" ? path + "?limit=" + std::to_string(flags->limit) : path;
    const auto answer = io::http_get(flags->admin, full);
    if (answer.status != 200) {
      if (answer.status == 0)
        std::cerr << "rankwise " << name << ": no node answers at " << flags->admin << " (" << answer.body << ")\n";
      else
        std::cerr << "rankwise " << name << ": " << answer.body << (answer.body.ends_with("\n") ? "" : "\n");
      exit_code = 3;
      return;
    }
    if (flags->as_json)
      std::cout << answer.body;
    else
      print(json::parse(answer.body));
    exit_code = 0;
  });
}

} // namespace

void add_view_commands(CLI::App& app, int& exit_code) {
  add_view(app, exit_code, "status", "What a running node is doing", "/status", print_status);
  add_view(app, exit_code, "actors", "The actor tree of a running node", "/actors", print_actors);
  add_view(app, exit_code, "ranks", "The ranks of a running node", "/ranks", print_ranks);
  add_view(app, exit_code, "requests", "The open requests of a running node", "/requests", print_requests);
}

} // namespace rankwise::app
