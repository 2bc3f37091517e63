#include "app/node/node_views.hpp"

#include "io/front/model_naming.hpp"
#include "wire/sglang/wire_error.hpp"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace rankwise::app {

using json = nlohmann::ordered_json;

namespace {

std::string utc_now() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

} // namespace

json actors_json(const node_snapshot& snapshot) {
  auto children = json::array();
  json root;
  for (const auto& a : snapshot.actors) {
    json row{{"role", a.role},
             {"name", a.name},
             {"state", a.state},
             {"detail", a.detail},
             {"answered", a.answered},
             {"parked", a.parked},
             {"mailbox_depth", a.mailbox_depth},
             {"handled", a.handled},
             {"restarts", a.restarts},
             {"last_error", a.last_error},
             {"longest_handler_ms", static_cast<double>(a.longest_handler_ns) / 1e6},
             {"slow_handlers", a.slow_handlers}};
    if (a.role == "supervisor")
      root = std::move(row);
    else
      children.push_back(std::move(row));
  }
  if (root.is_null())
    root = {{"role", "supervisor"}, {"answered", false}, {"state", "not answering"}};
  root["children"] = std::move(children);
  return root;
}

json ranks_json(const node_snapshot& snapshot) {
  auto pools = json::array();
  for (const auto& view : snapshot.pools) {
    auto ranks = json::array();
    for (const auto& r : view.ranks) {
      json row{{"rank", r.rank.rank},
               {"state", core::to_string(r.state)},
               {"epoch", r.epoch},
               {"requests", r.requests},
               {"tokens", r.tokens},
               {"prefill_tokens", r.prefill_tokens},
               {"kv_capacity", r.kv_capacity},
               {"kv_share", r.kv_share()},
               {"max_running", r.max_running},
               {"placements", r.placements},
               {"share", r.share},
               {"ejected", r.ejected},
               {"drain_cut", r.drain_cut}};
      if (r.reported)
        row["report"] = {{"age_s", r.report_age_s},
                         {"num_running", r.reported_running},
                         {"num_waiting", r.reported_waiting},
                         {"kv_used_tokens", r.reported_kv_used}};
      else
        row["report"] = nullptr;
      ranks.push_back(std::move(row));
    }
    json counts{{"placed", view.counts.placed}, {"refused", view.counts.refused}, {"ended", view.counts.charges_ended}};
    for (std::size_t i = 0; i < view.counts.reports.size(); ++i)
      counts["reports"][std::string{core::to_string(static_cast<core::report_verdict>(i))}] = view.counts.reports[i];
    pools.push_back({{"pool", view.name},
                     {"role", view.role},
                     {"policy", view.policy},
                     {"ranks_awaited", view.ranks_awaited},
                     {"ranks_up", view.ranks_up},
                     {"dp_size", view.dp_size},
                     {"charges", view.charges},
                     {"counts", std::move(counts)},
                     {"ranks", std::move(ranks)}});
  }
  return {{"pools", std::move(pools)}};
}

json load_history_json(const std::map<core::rank_id, core::load_history::series>& ranks,
                       const std::vector<std::string>& pool_names) {
  auto rows = json::array();
  for (const auto& [id, seen] : ranks) {
    json row{{"pool", id.pool < pool_names.size() ? pool_names[id.pool] : ""}, {"rank", id.rank}};
    const auto column = [&, &series = seen](const char* name, auto value) {
      auto& cells = row[name] = json::array();
      for (const auto& s : series)
        cells.push_back(s ? json(value(*s)) : json());
    };
    column("state", [](const core::load_history::sample& s) { return core::to_string(s.state); });
    column("requests", [](const core::load_history::sample& s) { return s.requests; });
    column("waiting", [](const core::load_history::sample& s) { return s.waiting; });
    column("kv_share", [](const core::load_history::sample& s) { return std::round(s.kv_share * 1e4) / 1e4; });
    rows.push_back(std::move(row));
  }
  return {{"step_s", core::to_seconds(core::load_history::step)}, {"ranks", std::move(rows)}};
}

json requests_json(const request_list& list) {
  auto rows = json::array();
  for (const auto& r : list.rows) {
    json row{{"rid", r.rid}, {"sample", r.sample}, {"stage", r.stage}, {"attempt", r.attempt}};
    row["rank"] = r.rank ? json(r.rank->rank) : json(nullptr);
    row["prefill_rank"] = r.prefill_rank ? json(r.prefill_rank->rank) : json(nullptr);
    row["prompt_tokens"] = r.prompt_tokens;
    row["completion_tokens"] = r.completion_tokens;
    row["age_s"] = r.age_s;
    rows.push_back(std::move(row));
  }
  return {{"in_flight", list.open_streams}, {"requests", std::move(rows)}};
}

json status_json(const node_snapshot& snapshot, const core::node_info& info, const io::front::model_facts& model) {
  json result;
  result["ready"] = info.ready;
  result["not_ready_reason"] = info.not_ready_reason;
  result["degraded"] = snapshot.degraded;
  result["degraded_reason"] = snapshot.degraded_reason;
  const auto names = io::front::names_of(model, info.model_name);
  result["model"] = {{"model_path", names.model_path},
                     {"served_model_name", names.served_model_name},
                     {"tokenizer_path", names.tokenizer_path}};
  auto warnings = json::array();
  if (auto warning = io::front::tokenizer_warning(model, info.model_name); !warning.empty())
    warnings.push_back(std::move(warning));
  for (const auto& refused : info.refused_ranks)
    warnings.push_back(refused);
  result["warnings"] = std::move(warnings);
  auto pools = json::array();
  for (const auto& v : snapshot.pools)
    pools.push_back(
        {{"pool", v.name}, {"policy", v.policy}, {"ranks_up", v.ranks_up}, {"ranks_awaited", v.ranks_awaited}});
  result["pools"] = std::move(pools);
  const auto& c = snapshot.requests;
  result["requests"] = {
      {"submitted", c.submitted},   {"accepted", c.accepted},   {"completed", c.completed},
      {"failed", c.failed},         {"cancelled", c.cancelled}, {"refused", c.refused},
      {"in_flight", c.in_flight()}, {"moved", c.moved},         {"tokens_delivered", c.tokens_delivered}};
  json reasons = json::object();
  for (std::size_t i = 1; i < c.by_failure.size(); ++i)
    if (c.by_failure[i] != 0)
      reasons[std::string{core::to_string(static_cast<core::failure>(i))}] = c.by_failure[i];
  result["reasons"] = std::move(reasons);
  result["silent"] = snapshot.silent;
  return result;
}

json loads_json(const std::vector<core::rank_load>& loads, const std::vector<std::string>& pool_names) {
  auto rows = json::array();
  for (const auto& l : loads) {
    const auto usage =
        l.kv_total_tokens == 0 ? 0.0 : static_cast<double>(l.kv_used_tokens) / static_cast<double>(l.kv_total_tokens);
    rows.push_back({{"pool", l.rank.pool < pool_names.size() ? pool_names[l.rank.pool] : ""},
                    {"dp_rank", l.rank.rank},
                    {"num_running_reqs", l.num_running},
                    {"num_waiting_reqs", l.num_waiting},
                    {"num_total_reqs", l.num_running + l.num_waiting},
                    {"num_used_tokens", l.kv_used_tokens},
                    {"max_total_num_tokens", l.kv_total_tokens},
                    {"token_usage", usage},
                    {"max_running_requests", l.max_running_requests}});
  }
  return {
      {"timestamp", utc_now()}, {"version", "rankwise"}, {"dp_rank_count", loads.size()}, {"loads", std::move(rows)}};
}

namespace {

/// Collects metric families one after another.
class families {
 public:
  using labels = std::vector<std::pair<std::string, std::string>>;

  void counter(const std::string& name, const std::string& help, double value, labels l = {}) {
    add(name, help, prometheus::MetricType::Counter, value, std::move(l));
  }
  void gauge(const std::string& name, const std::string& help, double value, labels l = {}) {
    add(name, help, prometheus::MetricType::Gauge, value, std::move(l));
  }
  void histogram(const std::string& name, const std::string& help, const prometheus::Histogram& h) {
    prometheus::MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = prometheus::MetricType::Histogram;
    family.metric.push_back(h.Collect());
    list_.push_back(std::move(family));
  }
  [[nodiscard]] std::string text() const { return prometheus::TextSerializer{}.Serialize(list_); }

 private:
  void add(const std::string& name, const std::string& help, prometheus::MetricType type, double value, labels l) {
    auto found = std::find_if(list_.begin(), list_.end(), [&](const auto& f) { return f.name == name; });
    if (found == list_.end()) {
      prometheus::MetricFamily family;
      family.name = name;
      family.help = help;
      family.type = type;
      list_.push_back(std::move(family));
      found = list_.end() - 1;
    }
    prometheus::ClientMetric metric;
    for (auto& [key, text] : l)
      metric.label.push_back({key, text});
    if (type == prometheus::MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
    found->metric.push_back(std::move(metric));
  }

  std::vector<prometheus::MetricFamily> list_;
};

double number(std::uint64_t x) {
  return static_cast<double>(x);
}

double imbalance(const pool_view& view) {
  double most = 0;
  double sum = 0;
  std::size_t ranks = 0;
  for (const auto& r : view.ranks) {
    if (r.state != core::rank_state::ready)
      continue;
    most = std::max(most, number(r.tokens));
    sum += number(r.tokens);
    ++ranks;
  }
  return sum == 0 ? 1 : most * static_cast<double>(ranks) / sum;
}

} // namespace

std::string metrics_text(const metrics_input& in) {
  families f;
  const auto& s = in.snapshot;
  f.gauge("rankwise_ready", "1 from when every awaited rank took work, while each pool has one that does",
          in.info.ready ? 1 : 0);
  f.gauge("rankwise_degraded", "1 when some actor is parked", s.degraded ? 1 : 0);
  const auto& c = s.requests;
  const std::string requests = "Streams by what became of them; accepted = completed + failed + cancelled + in flight";
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::uint64_t>>{{"submitted", c.submitted},
                                                                                      {"accepted", c.accepted},
                                                                                      {"completed", c.completed},
                                                                                      {"failed", c.failed},
                                                                                      {"cancelled", c.cancelled},
                                                                                      {"refused", c.refused}})
    f.counter("rankwise_requests_total", requests, number(value), {{"outcome", name}});
  f.gauge("rankwise_requests_in_flight", "Accepted streams that have not ended", number(c.in_flight()));
  // From the manager's own book-keeping and from the streams that it holds open, which are counted apart.
  f.gauge("rankwise_requests_conservation_error",
          "Accepted - completed - failed - cancelled - open accepted streams; not 0 for long = a leak",
          s.requests_known ? number(c.in_flight()) - number(c.accepted_open) : 0);
  f.counter("rankwise_requests_moved_total", "Placements of a request after its first one", number(c.moved));
  for (std::size_t i = 1; i < c.by_failure.size(); ++i)
    f.counter("rankwise_request_failures_total", "Streams that did not complete, by reason", number(c.by_failure[i]),
              {{"reason", std::string{core::to_string(static_cast<core::failure>(i))}}});
  f.counter("rankwise_tokens_delivered_total", "Tokens handed to the front", number(c.tokens_delivered));
  const std::string dropped = "Outputs of an engine that belong to no running request";
  f.counter("rankwise_outputs_dropped_total", dropped, number(c.outputs_of_unknown_requests),
            {{"kind", "unknown_request"}});
  f.counter("rankwise_outputs_dropped_total", dropped, number(c.outputs_of_old_epochs), {{"kind", "old_epoch"}});
  f.counter("rankwise_outputs_dropped_total", dropped, number(c.outputs_of_old_attempts), {{"kind", "old_attempt"}});
  f.counter("rankwise_outputs_dropped_total", dropped, number(in.hub.unknown_rids), {{"kind", "unknown_rid"}});
  const auto* const gaps =
      "Outputs before which tokens never arrived, by the count that came with them, by where it was "
      "seen; their streams move or end as tokens_lost";
  f.counter("rankwise_outputs_behind_a_gap_total", gaps, number(c.outputs_behind_a_gap), {{"at", "request_manager"}});
  f.counter("rankwise_outputs_behind_a_gap_total", gaps, number(in.front.events_behind_a_gap), {{"at", "front"}});
  f.counter("rankwise_decision_log_lines_lost_total", "Lines that a decision log lacks: it ends there for a replay",
            number(in.decision_lines_lost));
  f.counter("rankwise_placements_of_old_terms_total",
            "Placements of a controller that had been replaced when they were read: dropped, and ordered again",
            number(c.placements_of_old_terms));
  f.counter("rankwise_outputs_dropped_total", dropped, number(in.hub.frames_of_closed_links),
            {{"kind", "closed_link"}});

  for (const auto& view : s.pools) {
    const families::labels pool{{"pool", view.name}};
    f.gauge("rankwise_pool_ranks_up", "Ranks that take work", view.ranks_up, pool);
    f.gauge("rankwise_pool_ranks_awaited", "Ranks without which the node is not ready", view.ranks_awaited, pool);
    f.gauge("rankwise_pool_requests_waiting",
            "Requests that wait in the controller, for room under the pool's caps or for a rank that has little to do",
            number(view.waiting), pool);
    f.gauge("rankwise_pool_charges", "Legs charged to a rank", number(view.charges), pool);
    for (std::size_t i = 0; i < view.counts.placed_by.size(); ++i)
      f.counter("rankwise_placements_total", "Legs given a rank, by what chose it", number(view.counts.placed_by[i]),
                {{"pool", view.name}, {"rule", std::string{core::to_string(static_cast<core::placement_rule>(i))}}});
    f.gauge("rankwise_pool_imbalance",
            "KV tokens of the fullest rank that takes work, by the ledger, divided by their mean; 1 = even or empty",
            imbalance(view), pool);
    f.counter("rankwise_placements_refused_total", "Legs that got no rank", number(view.counts.refused), pool);
    for (std::size_t i = 0; i < view.counts.reports.size(); ++i)
      f.counter("rankwise_load_reports_total", "Load reports by what the ledger made of them",
                number(view.counts.reports[i]),
                {{"pool", view.name}, {"verdict", std::string{core::to_string(static_cast<core::report_verdict>(i))}}});
    for (const auto& r : view.ranks) {
      const families::labels rank{{"pool", view.name}, {"rank", std::to_string(r.rank.rank)}};
      for (std::uint8_t state = 0; state < core::rank_state_count; ++state) {
        auto labels = rank;
        labels.emplace_back("state", core::to_string(static_cast<core::rank_state>(state)));
        f.gauge("rankwise_rank_state", "1 for the state that the rank is in",
                r.state == static_cast<core::rank_state>(state) ? 1 : 0, labels);
      }
      f.gauge("rankwise_rank_ejected", "1 while the rank gets no work for errors of its engine", r.ejected ? 1 : 0,
              rank);
      f.gauge("rankwise_rank_share", "Factor of the rank's share of the work: slow start, errors", r.share, rank);
      f.gauge("rankwise_rank_epoch", "Incarnation of the rank", r.epoch, rank);
      f.gauge("rankwise_rank_requests", "Legs placed and not ended", r.requests, rank);
      f.gauge("rankwise_rank_tokens", "KV tokens in use, by the ledger", number(r.tokens), rank);
      f.gauge("rankwise_rank_prefill_tokens", "Prompt tokens placed whose first token was not seen",
              number(r.prefill_tokens), rank);
      f.gauge("rankwise_rank_kv_capacity_tokens", "KV capacity as registered", number(r.kv_capacity), rank);
      f.counter("rankwise_rank_placements_total", "Legs placed on the rank", number(r.placements), rank);
      if (r.reported)
        f.gauge("rankwise_rank_report_age_seconds", "Age of the newest load report", r.report_age_s, rank);
    }
  }
  f.counter("rankwise_outputs_dropped_total", dropped, number(in.hub.foreign_outputs), {{"kind", "earlier_boot"}});
  f.counter("rankwise_outputs_dropped_total", dropped, number(in.hub.outputs_of_other_ranks), {{"kind", "other_rank"}});
  f.counter("rankwise_outputs_dropped_total", dropped, number(in.hub.frames_of_given_up_links),
            {{"kind", "given_up_link"}});
  f.counter("rankwise_foreign_aborts_total", "Aborts of requests that an earlier process of this node had placed",
            number(in.hub.foreign_aborts));
  f.counter("rankwise_engine_peers_refused_total", "Connections from addresses that are not in allowed_peers",
            number(in.hub.peers_refused));
  f.counter("rankwise_load_reports_absent_total", "Output batches without a load report",
            number(in.hub.reports_absent));
  f.counter("rankwise_load_reports_malformed_total", "Load reports of nonsense, dropped",
            number(in.hub.reports_malformed));
  f.counter("rankwise_engine_frames_received_total", "Frames from ranks", number(in.hub.frames_received));
  f.counter("rankwise_engine_frames_sent_total", "Frames to ranks", number(in.hub.frames_sent));
  f.counter("rankwise_engine_send_queue_full_total", "Frames refused by a full queue towards a rank",
            number(in.hub.send_queue_full));
  f.counter("rankwise_engine_receive_pauses_total", "Times that reading stopped because RequestManager was behind",
            number(in.hub.receive_pauses));
  for (std::size_t i = 0; i < in.hub.malformed.size(); ++i)
    f.counter("rankwise_engine_frames_malformed_total", "Frames from ranks that could not be read, by kind",
              number(in.hub.malformed[i]),
              {{"kind", std::string{wire::sglang::to_string(static_cast<wire::sglang::wire_error_kind>(i))}}});
  for (const auto& a : s.actors) {
    const families::labels actor{{"role", a.role}, {"name", a.name}};
    f.gauge("rankwise_actor_up", "1 when the actor answered within 500 ms", a.answered ? 1 : 0, actor);
    f.gauge("rankwise_actor_mailbox_depth", "Messages waiting", number(a.mailbox_depth), actor);
    f.counter("rankwise_actor_handled_total", "Messages handled by this incarnation", number(a.handled), actor);
    f.counter("rankwise_actor_restarts_total", "Restarts by the Supervisor", a.restarts, actor);
    f.counter("rankwise_actor_slow_handlers_total", "Of those: handlers of more than 0.5 ms", number(a.slow_handlers),
              actor);
    f.gauge("rankwise_actor_longest_handler_seconds", "Longest handler of this incarnation",
            static_cast<double>(a.longest_handler_ns) / 1e9, actor);
  }
  f.histogram("rankwise_dispatch_seconds",
              "From a request that the front has read and checked until ZeroMQ has it for its rank", in.dispatch);
  f.histogram("rankwise_decision_seconds", "A placement: a rank chosen and charged, or the leg refused", in.decision);
  f.gauge("rankwise_front_connections", "Client connections", number(in.front.server.connections_now));
  f.gauge("rankwise_front_calls", "Open calls", number(in.front.server.calls_now));
  f.counter("rankwise_front_chunks_total", "Chunk messages sent", number(in.front.chunks));
  f.counter("rankwise_front_tokens_total", "Tokens sent", number(in.front.tokens));
  f.counter("rankwise_front_invalid_total", "Requests refused by validation", number(in.front.invalid));
  f.counter("rankwise_front_slow_clients_total", "Streams ended because the client did not read",
            number(in.front.slow_clients));
  f.counter("rankwise_front_protocol_errors_total", "Breaches of HTTP/2", number(in.front.server.protocol_errors));
  for (std::size_t i = 0; i < io::grpc::flood_kind_count; ++i)
    f.counter("rankwise_front_floods_total", "Connections ended because the client flooded them",
              number(in.front.server.floods[i]),
              {{"kind", std::string{to_string(static_cast<io::grpc::flood_kind>(i))}}});
  f.counter("rankwise_front_tls_handshakes_total", "TLS handshakes that were completed",
            number(in.front.server.tls_handshakes));
  for (std::size_t i = 0; i < io::grpc::tls_failure_count; ++i)
    f.counter("rankwise_front_tls_handshakes_failed_total",
              "TLS handshakes refused or not completed in time: no or a wrong certificate, no h2 by ALPN, no TLS",
              number(in.front.server.tls_failures[i]),
              {{"reason", std::string{to_string(static_cast<io::grpc::tls_failure>(i))}}});
  return f.text();
}

} // namespace rankwise::app
