#include "app/node/operator_routes.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

namespace rankwise::app {

namespace {

using io::http_answer;
using io::http_query;
using json = nlohmann::ordered_json;

http_answer refused(int status, std::string text) {
  return as_json({{"done", false}, {"text", std::move(text)}}, status);
}

/// Wall-clock time of an event, from its distance to now.
std::string wall_time(core::timestamp at, core::timestamp now) {
  const auto when = std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::microseconds>(now - at);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}

std::optional<std::uint16_t> pool_index(const operator_backend& backend, const std::string& name) {
  if (name.empty() && backend.pools.size() == 1)
    return std::uint16_t{0};
  const auto found = std::find(backend.pools.begin(), backend.pools.end(), name);
  if (found == backend.pools.end())
    return std::nullopt;
  return static_cast<std::uint16_t>(found - backend.pools.begin());
}

std::string unknown_pool(const operator_backend& backend, const std::string& name) {
  return fmt::format("pool: there is no \"{}\", the node has {}", name, fmt::join(backend.pools, ", "));
}

http_answer command_rank(const operator_backend& backend, const http_query& q, rank_wish wish, const char* verb) {
  if (auto no = denied(backend.token, q))
    return *no;
  const auto pool = pool_index(backend, q.get("pool"));
  if (!pool)
    return refused(404, unknown_pool(backend, q.get("pool")));
  const auto number = q.number("rank", std::uint16_t{0});
  if (!number || q.get("rank").empty())
    return refused(400, "rank: \"" + q.get("rank") + "\" is not a rank number");
  rank_command command;
  command.rank = {*pool, *number};
  command.wish = wish;
  command.force = q.get("force") == "1" || q.get("force") == "true";
  const auto deadline_s = q.number("deadline_s", backend.drain_s);
  if (!deadline_s || !(*deadline_s >= 0 && *deadline_s <= 1e7))
    return refused(400, "deadline_s: \"" + q.get("deadline_s") + "\" is not a number of seconds from 0 to 10000000");
  command.deadline = core::from_seconds(*deadline_s);
  const auto name = backend.pools[*pool] + "/" + std::to_string(*number);
  const auto result = backend.command(command);
  if (!result)
    return refused(503, name + ": its actor did not answer within 2 s");
  backend.events.add(backend.now(), "operator", name, verb, "from " + q.peer + ": " + result->text);
  spdlog::info("event=operator verb={} pool={} rank={} peer={} done={} result={:?}", verb, backend.pools[*pool],
               *number, q.peer, result->done, result->text);
  return as_json({{"done", result->done},
                  {"pool", backend.pools[*pool]},
                  {"rank", *number},
                  {"state", result->known ? std::string{core::to_string(result->state)} : "absent"},
                  {"text", name + ": " + result->text}},
                 result->done    ? 200
                 : result->known ? 409
                                 : 404);
}

http_answer change_policy(const operator_backend& backend, const http_query& q) {
  if (auto no = denied(backend.token, q))
    return *no;
  policy_change change;
  change.policy = q.get("policy");
  const auto known = core::policy_names();
  if (std::find(known.begin(), known.end(), change.policy) == known.end())
    return refused(400, fmt::format("policy: \"{}\" is not one of {}", change.policy, fmt::join(known, ", ")));
  json changed = json::array();
  for (std::uint16_t i = 0; i < backend.pools.size(); ++i) {
    if (!q.get("pool").empty() && q.get("pool") != backend.pools[i])
      continue;
    change.pool = i;
    const auto result = backend.change_policy(change);
    if (!result)
      return refused(503, "pool " + backend.pools[i] + ": its controller did not answer within 2 s");
    backend.events.add(backend.now(), "operator", backend.pools[i], result->before + " -> " + change.policy,
                       "policy set from " + q.peer);
    spdlog::info("event=operator verb=policy pool={} peer={} before={} after={}", backend.pools[i], q.peer,
                 result->before, change.policy);
    changed.push_back({{"pool", backend.pools[i]}, {"before", result->before}, {"policy", change.policy}});
  }
  if (changed.empty())
    return refused(404, unknown_pool(backend, q.get("pool")));
  return as_json({{"done", true}, {"pools", changed}});
}

http_answer not_a_number(const http_query& q, const char* name) {
  return refused(400, fmt::format("{}: \"{}\" is not a number", name, q.get(name)));
}

/// Without "after" just where the stream is now. "arrival_s" of each is by the node's clock: only differences mean
/// something.
http_answer requests_since(const operator_backend& backend, const http_query& q) {
  const auto after = q.number("after", std::uint64_t{0});
  if (!after)
    return not_a_number(q, "after");
  const bool given = q.parameters.contains("after");
  const auto taken = backend.requests.take(given ? after : std::nullopt, backend.now());
  json list = json::array();
  for (const auto& r : taken.requests)
    list.push_back(json(record::request_line(*r, core::timestamp{})));
  return as_json({{"last", taken.last},
                  {"lost", taken.lost},
                  {"more", taken.more},
                  {"head", json(record::request_file_head(backend.requests.block_tokens()))},
                  {"requests", list}});
}

http_answer events(const operator_backend& backend, const http_query& q) {
  const auto after = q.number("after", std::uint64_t{0});
  if (!after)
    return not_a_number(q, "after");
  json list = json::array();
  const auto now = backend.now();
  for (const auto& e : backend.events.since(*after))
    list.push_back({{"number", e.number},
                    {"at", wall_time(e.at, now)},
                    {"kind", e.kind},
                    {"subject", e.subject},
                    {"change", e.change},
                    {"cause", e.cause}});
  return as_json({{"last", backend.events.last()}, {"events", list}});
}

json record_json(const operator_backend& backend, const core::placement_record& r, core::timestamp now) {
  json ranks = json::array();
  for (const auto& c : r.candidates) {
    const auto& v = c.view;
    ranks.push_back({{"rank", v.rank},
                     {"score", c.score ? json(*c.score) : json()},
                     {"requests", v.requests},
                     {"tokens", v.tokens},
                     {"prefill_tokens", v.prefill_tokens},
                     {"kv_capacity", v.kv_capacity},
                     {"share", v.share},
                     {"report_age_s", v.report_age ? json(core::to_seconds(*v.report_age)) : json()},
                     {"stale", v.stale}});
  }
  return {{"rid", r.rid},
          {"pool", r.pool < backend.pools.size() ? backend.pools[r.pool] : ""},
          {"at", wall_time(r.at, now)},
          {"attempt", r.attempt},
          {"sample", r.sample},
          {"rank", r.refused ? json() : json(r.rank)},
          {"epoch", r.epoch},
          {"rule", r.rule},
          {"prompt_tokens", r.prompt_tokens},
          {"max_new_tokens", r.max_new_tokens},
          {"candidates", ranks}};
}

http_answer placements(const operator_backend& backend, const http_query& q) {
  const auto list = backend.explain(q.path_rest);
  if (!list)
    return refused(503, "the controllers did not answer within 2 s");
  json records = json::array();
  for (const auto& r : list->records)
    records.push_back(record_json(backend, r, backend.now()));
  if (records.empty() && !list->silent.empty())
    return as_json(
        {{"done", false},
         {"text", fmt::format("rid: the controller of pool {} did not answer; the others know of no placement "
                              "of \"{}\"",
                              fmt::join(list->silent, ", "), q.path_rest)},
         {"placements", records},
         {"silent", list->silent}},
        503);
  if (records.empty())
    return refused(404, "rid: no placement of \"" + q.path_rest + "\" is among the newest " +
                            std::to_string(core::placement_records_max) + " of a pool");
  return as_json({{"placements", records}, {"silent", list->silent}});
}

} // namespace

http_answer as_json(const json& j, int status) {
  return {status, "application/json", j.dump(1, ' ', false, json::error_handler_t::replace) + "\n"};
}

std::optional<http_answer> denied(const std::string& token, const http_query& q) {
  if (q.from_loopback)
    return std::nullopt;
  if (token.empty())
    return refused(403, "only loopback itself may change anything: the node has no admin_token_file");
  if (q.bearer_token != token)
    return refused(401, "Authorization: a bearer token is needed");
  return std::nullopt;
}

void add_operator_routes(io::admin_server& admin, const operator_backend& backend) {
  admin.post("/ranks/drain",
             [backend](const http_query& q) { return command_rank(backend, q, rank_wish::drain, "drain"); });
  admin.post("/ranks/undrain",
             [backend](const http_query& q) { return command_rank(backend, q, rank_wish::undrain, "undrain"); });
  admin.post("/ranks/remove",
             [backend](const http_query& q) { return command_rank(backend, q, rank_wish::remove, "remove"); });
  admin.post("/policy", [backend](const http_query& q) { return change_policy(backend, q); });
  admin.get("/events", [backend](const http_query& q) { return events(backend, q); });
  admin.get("/requests/stream", [backend](const http_query& q) { return requests_since(backend, q); });
  admin.get("/placements/(.+)", [backend](const http_query& q) { return placements(backend, q); });
}

} // namespace rankwise::app
