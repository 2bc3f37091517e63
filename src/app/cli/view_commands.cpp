#include "app/cli/view_commands.hpp"

#include "app/cli/node_client.hpp"
#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

namespace rankwise::app {

namespace {

using json = nlohmann::ordered_json;

void print_status(const json& j) {
  fmt::print("{}{}\n", j["ready"].get<bool>() ? "ready" : "not ready: " + j["not_ready_reason"].get<std::string>(),
             j["degraded"].get<bool>() ? ", degraded: " + j["degraded_reason"].get<std::string>() : "");
  if (const auto model = j.find("model"); model != j.end())
    fmt::print("model {}, tokenizer {}\n", (*model)["served_model_name"].get<std::string>(),
               (*model)["tokenizer_path"].get<std::string>());
  for (const auto& warning : j.value("warnings", json::array()))
    fmt::print("warning: {}\n", warning.get<std::string>());
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
  if (const auto detail = a.value("detail", ""); !detail.empty())
    fmt::print("{}  {}\n", indent, detail);
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

void print_events(const json& events) {
  for (const auto& e : events)
    fmt::print("{} {:<14} {:<26} {:<28} {}\n", e["at"].get<std::string>(), e["kind"].get<std::string>(),
               e["subject"].get<std::string>(), e["change"].get<std::string>(), e["cause"].get<std::string>());
  std::fflush(stdout);
}

void print_placements(const json& j) {
  for (const auto& p : j["placements"]) {
    fmt::print("{} {}: pool {}, attempt {}, {} prompt tokens, at most {} more\n", p["at"].get<std::string>(),
               p["rid"].get<std::string>(), p["pool"].get<std::string>(), p["attempt"].get<int>(),
               p["prompt_tokens"].get<std::uint64_t>(), p["max_new_tokens"].get<std::uint64_t>());
    if (p["rank"].is_null())
      fmt::print("  refused: {}\n", p["rule"].get<std::string>());
    else
      fmt::print("  rank {} (epoch {}) by {}\n", p["rank"].get<int>(), p["epoch"].get<int>(),
                 p["rule"].get<std::string>());
    if (p["candidates"].empty())
      continue;
    fmt::print("  {:>5} {:>9} {:>8} {:>9} {:>8} {:>6} {:>6} {:>8}\n", "RANK", "SCORE", "REQUESTS", "TOKENS", "PREFILL",
               "KV %", "SHARE", "REPORT");
    for (const auto& c : p["candidates"]) {
      const auto capacity = c["kv_capacity"].get<double>();
      fmt::print("{} {:>5} {:>9} {:>8} {:>9} {:>8} {:>6.1f} {:>6.2f} {:>8}\n", c["rank"] == p["rank"] ? ">" : " ",
                 c["rank"].get<int>(), c["score"].is_null() ? "-" : fmt::format("{:.4f}", c["score"].get<double>()),
                 c["requests"].get<int>(), c["tokens"].get<std::uint64_t>(), c["prefill_tokens"].get<std::uint64_t>(),
                 capacity > 0 ? 100 * c["tokens"].get<double>() / capacity : 0.0, c["share"].get<double>(),
                 c["report_age_s"].is_null()
                     ? "none"
                     : fmt::format("{:.2f}s{}", c["report_age_s"].get<double>(), c["stale"].get<bool>() ? "!" : ""));
    }
  }
}

void add_view(CLI::App& app, int& exit_code, const char* name, const char* what, const std::string& path,
              void (*print)(const json&)) {
  auto* sub = app.add_subcommand(name, what);
  auto client = std::make_shared<node_client>(name);
  client->add_options(*sub, std::string{name} + " --admin 127.0.0.1:30002", false);
  auto limit = std::make_shared<int>(20);
  const bool limited = path == "/requests";
  if (limited)
    sub->add_option("--limit", *limit, "most rows")->transform(whole_number(1, 10'000))->capture_default_str();
  sub->callback([=, &exit_code] {
    const auto answer = client->get(limited ? path + "?limit=" + std::to_string(*limit) : path);
    exit_code = answer.exit_code;
    if (exit_code != exit_done)
      return;
    if (client->as_json)
      std::cout << answer.body;
    else
      print(answer.json);
  });
}

void add_events(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("events", "State changes of a running node, with their causes");
  auto client = std::make_shared<node_client>("events");
  client->add_options(*sub, "events --follow", false);
  auto follow = std::make_shared<bool>(false);
  sub->add_flag("--follow", *follow, "go on with what happens, until interrupted");
  sub->callback([=, &exit_code] {
    std::uint64_t after = 0;
    bool was_there = false;
    do {
      const auto answer = client->get("/events?after=" + std::to_string(after));
      exit_code = answer.exit_code;
      if (exit_code != exit_done) {
        if (!*follow || !was_there)
          return;
        std::this_thread::sleep_for(std::chrono::seconds{1}); // it is being restarted
        continue;
      }
      was_there = true;
      if (answer.json["last"].get<std::uint64_t>() < after) { // another process: it counts from 1 again
        after = 0;
        continue;
      }
      const auto& events = answer.json["events"];
      if (client->as_json && *follow)
        for (const auto& e : events)
          std::cout << e.dump() << "\n" << std::flush;
      else if (client->as_json)
        std::cout << answer.body;
      else
        print_events(events);
      if (!events.empty())
        after = events.back()["number"].get<std::uint64_t>();
      if (*follow)
        std::this_thread::sleep_for(std::chrono::milliseconds{500});
    } while (*follow);
  });
}

void add_why(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("why", "Why a request went to its rank: what was known, and by what rule");
  auto client = std::make_shared<node_client>("why");
  client->add_options(*sub, "why chatcmpl-17", false);
  auto rid = std::make_shared<std::string>();
  sub->add_option("RID", *rid, "as the client sent it")->required();
  sub->callback([=, &exit_code] {
    const auto answer = client->get("/placements/" + percent_encoded(*rid));
    exit_code = answer.exit_code;
    const auto silent = answer.json.is_object() ? json(answer.json).value("silent", json::array()) : json::array();
    if (!silent.empty())
      exit_code = exit_not_in_time; // also when the others know of nothing
    else if (exit_code != exit_done)
      return;
    if (client->as_json)
      std::cout << answer.body;
    else
      print_placements(answer.json);
    std::cout << std::flush;
    for (const auto& pool : silent)
      std::cerr << fmt::format("rankwise why: the controller of pool {} did not answer: it may know of more\n",
                               pool.get<std::string>());
  });
}

} // namespace

void add_view_commands(CLI::App& app, int& exit_code) {
  add_view(app, exit_code, "status", "What a running node is doing", "/status", print_status);
  add_view(app, exit_code, "actors", "The actor tree of a running node", "/actors", print_actors);
  add_view(app, exit_code, "ranks", "The ranks of a running node", "/ranks", print_ranks);
  add_events(app, exit_code);
  add_why(app, exit_code);
  add_view(app, exit_code, "requests", "The open requests of a running node", "/requests", print_requests);
}

} // namespace rankwise::app
