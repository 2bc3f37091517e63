#include "app/cli/node_client.hpp"
#include "app/cli/view_commands.hpp"
#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

namespace rankwise::app {

namespace {

using json = nlohmann::json;

std::string rank_query(const rank_name& name) {
  return "?pool=" + percent_encoded(name.pool) + "&rank=" + percent_encoded(name.rank);
}

json row_of(const json& ranks, const json& pool_name, int number) {
  for (const auto& pool : ranks["pools"])
    if (pool["pool"] == pool_name)
      for (const auto& rank : pool["ranks"])
        if (rank["rank"].get<int>() == number)
          return rank;
  return {{"state", "absent"}};
}

/// Why the rank is drained, as its newest event says, for people; empty when that is not known any more.
std::string cause_of_drained(const node_client& client, const std::string& subject) {
  std::string cause;
  const auto events = client.get("/events");
  if (events.exit_code != exit_done)
    return cause;
  for (const auto& e : events.json["events"])
    if (e["subject"] == subject && e["change"].get<std::string>().find("-> drained") != std::string::npos)
      cause = e["cause"].get<std::string>();
  return cause;
}

void show(const node_client& client, const node_client::answer& answer) {
  if (client.as_json)
    std::cout << answer.body;
  else if (answer.exit_code == exit_done)
    fmt::print("{}\n", answer.json.value("text", answer.body));
  std::cout << std::flush;
}

struct drain_flags {
  node_client client{"drain"};
  std::string rank;
  double deadline_s = 30;
  bool no_wait = false;
};

int drain(const drain_flags& flags) {
  const auto name = split_rank_name(flags.rank);
  const auto begun =
      flags.client.post("/ranks/drain" + rank_query(name) + fmt::format("&deadline_s={}", flags.deadline_s));
  if (begun.exit_code != exit_done || flags.no_wait) {
    show(flags.client, begun);
    return begun.exit_code;
  }
  if (!flags.client.as_json)
    fmt::print("{}\n", begun.json.value("text", ""));
  // At its deadline the node itself ends what is left; a little later it must have said so.
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>{flags.deadline_s + 5};
  for (;;) {
    // Before the first look too: an answer may be 100 ms old, from before the drain.
    std::this_thread::sleep_for(std::chrono::milliseconds{200});
    const auto ranks = flags.client.get("/ranks");
    if (ranks.exit_code != exit_done)
      return ranks.exit_code;
    const auto row = row_of(ranks.json, begun.json["pool"], begun.json["rank"].get<int>());
    const auto state = row["state"].get<std::string>();
    if (state != "draining") {
      const auto subject = fmt::format("{}/{}", begun.json["pool"].get<std::string>(), begun.json["rank"].get<int>());
      const auto cut = row.value("drain_cut", 0U);
      const auto cause = state == "drained" ? cause_of_drained(flags.client, subject) : std::string{};
      if (flags.client.as_json)
        std::cout << json{{"rank", flags.rank}, {"state", state}, {"cause", cause}, {"drain_cut", cut}}.dump() << "\n";
      else
        fmt::print("{}: is {}{}\n", subject, state, cause.empty() ? "" : ": " + cause);
      if (cut > 0)
        return exit_not_in_time;
      return state == "drained" || state == "down" || state == "parked" ? exit_done : exit_refused;
    }
    if (std::chrono::steady_clock::now() > until) {
      std::cerr << "rankwise drain: " << flags.rank << " is still draining\n";
      return exit_not_in_time;
    }
  }
}

} // namespace

void add_operator_commands(CLI::App& app, int& exit_code) {
  {
    auto* sub = app.add_subcommand("drain", "Give a rank no new work, wait until what it has is over");
    auto flags = std::make_shared<drain_flags>();
    flags->client.add_options(*sub, "drain decode/3 --deadline 2m", true);
    sub->add_option("RANK", flags->rank, "pool/number, or the number alone when the node has one pool")->required();
    as_duration(sub->add_option("--deadline", flags->deadline_s, "after which what is left moves or ends"),
                {.most_s = 1e7})
        ->capture_default_str();
    sub->add_flag("--no-wait", flags->no_wait, "only begin");
    sub->callback([flags, &exit_code] { exit_code = drain(*flags); });
  }
  {
    auto* sub = app.add_subcommand("undrain", "Give a drained rank work again");
    auto client = std::make_shared<node_client>("undrain");
    auto rank = std::make_shared<std::string>();
    client->add_options(*sub, "undrain decode/3", true);
    sub->add_option("RANK", *rank, "pool/number, or the number alone when the node has one pool")->required();
    sub->callback([client, rank, &exit_code] {
      const auto answer = client->post("/ranks/undrain" + rank_query(split_rank_name(*rank)));
      show(*client, answer);
      exit_code = answer.exit_code;
    });
  }
  {
    auto* sub = app.add_subcommand("remove", "Close a rank's endpoints and forget it");
    auto client = std::make_shared<node_client>("remove");
    auto rank = std::make_shared<std::string>();
    auto force = std::make_shared<bool>(false);
    client->add_options(*sub, "remove decode/3", true);
    sub->add_option("RANK", *rank, "pool/number, or the number alone when the node has one pool")->required();
    sub->add_flag("--force", *force, "although it has requests: they move, or end as rank_lost");
    sub->callback([client, rank, force, &exit_code] {
      const auto answer =
          client->post("/ranks/remove" + rank_query(split_rank_name(*rank)) + (*force ? "&force=1" : ""));
      show(*client, answer);
      exit_code = answer.exit_code;
    });
  }
  {
    auto* policy = app.add_subcommand("policy", "The rule by which ranks are chosen");
    policy->require_subcommand(1);
    auto* sub = policy->add_subcommand("set", "Another rule from now on, until the node is restarted");
    auto client = std::make_shared<node_client>("policy set");
    auto name = std::make_shared<std::string>();
    auto pool = std::make_shared<std::string>();
    client->add_options(*sub, "policy set round_robin --pool decode", true);
    sub->add_option("POLICY", *name, "as in the configuration")->required();
    sub->add_option("--pool", *pool, "default: every pool");
    sub->callback([client, name, pool, &exit_code] {
      const auto answer = client->post("/policy?policy=" + percent_encoded(*name) + "&pool=" + percent_encoded(*pool));
      exit_code = answer.exit_code;
      if (client->as_json || exit_code != exit_done)
        return show(*client, answer);
      for (const auto& p : answer.json["pools"])
        fmt::print("pool {}: {} -> {}\n", p["pool"].get<std::string>(), p["before"].get<std::string>(),
                   p["policy"].get<std::string>());
    });
  }
}

} // namespace rankwise::app
