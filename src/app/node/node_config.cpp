#include "app/node/node_config.hpp"

#include "app/options/duration.hpp"
#include "io/zmq/address_block.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

namespace rankwise::app {

namespace {

template <class Names>
std::string listed(const Names& names) {
  std::string list;
  for (const auto& name : names)
    list += (list.empty() ? "" : ", ") + std::string{name};
  return list;
}

/// A value as the file has it; long ones are cut.
std::string written(const toml::node& node) {
  constexpr std::size_t bytes_max = 60;
  if (node.is_table())
    return "a table";
  if (node.is_array())
    return "a list";
  std::ostringstream out;
  node.visit([&](const auto& n) {
    if constexpr (toml::is_string<decltype(n)>)
      out << '"' << n.get() << '"';
    else if constexpr (toml::is_boolean<decltype(n)>)
      out << (n.get() ? "true" : "false");
    else if constexpr (toml::is_floating_point<decltype(n)>)
      out << (std::isfinite(n.get()) ? plain_digits(n.get()) : "no finite number");
    else if constexpr (toml::is_value<decltype(n)>)
      out << n.get();
  });
  auto text = out.str();
  return text.size() <= bytes_max ? text : text.substr(0, bytes_max) + "...";
}

/// Reads the keys of one table and remembers which it knows, so that what is left over can be reported.
class table_reader {
 public:
  table_reader(const toml::table* table, std::string prefix, std::string file, config_errors& errors)
      : table_(table), prefix_(std::move(prefix)), file_(std::move(file)), errors_(errors) {}

  /// Every key with the value that holds, from the file or by default.
  [[nodiscard]] const toml::table& effective() const noexcept { return effective_; }

  void text(const char* key, std::string& out) {
    if (const auto* node = find(key)) {
      if (const auto value = node->value_exact<std::string>())
        out = *value;
      else
        complain_of_value(*node, key, "must be a string");
    }
    effective_.insert_or_assign(key, out);
  }

  void texts(const char* key, std::vector<std::string>& out) {
    if (const auto* node = find(key)) {
      const auto* list = node->as_array();
      if (list == nullptr || (!list->empty() && !list->is_homogeneous(toml::node_type::string))) {
        complain_of_value(*node, key, "must be a list of strings");
      } else {
        out.clear();
        for (const auto& each : *list)
          out.push_back(*each.value_exact<std::string>());
      }
    }
    toml::array shown;
    for (const auto& each : out)
      shown.push_back(each);
    effective_.insert_or_assign(key, std::move(shown));
  }

  void flag(const char* key, bool& out) {
    if (const auto* node = find(key)) {
      if (const auto value = node->value_exact<bool>())
        out = *value;
      else
        complain_of_value(*node, key, "must be true or false");
    }
    effective_.insert_or_assign(key, out);
  }

  template <class Int>
  void integer(const char* key, Int& out, std::int64_t low, std::int64_t high) {
    if (const auto* node = find(key)) {
      const auto value = node->value_exact<std::int64_t>();
      if (!value)
        complain_of_value(*node, key, "must be a whole number");
      else if (*value < low || *value > high)
        complain(*node, key,
                 std::to_string(*value) + " is not within " + std::to_string(low) + " and " + std::to_string(high));
      else
        out = static_cast<Int>(*value);
    }
    effective_.insert_or_assign(key, static_cast<std::int64_t>(out));
  }

  void number(const char* key, double& out, double low, double high) {
    if (const auto* node = find(key)) {
      const auto value = node->is_number() ? node->value<double>() : std::nullopt;
      if (!value)
        complain_of_value(*node, key, "must be a number");
      else if (!(*value >= low && *value <= high))
        complain_of_value(*node, key, "must be within " + plain_digits(low) + " and " + plain_digits(high));
      else
        out = *value;
    }
    effective_.insert_or_assign(key, out);
  }

  void milliseconds(const char* key, core::duration& out, std::int64_t low, std::int64_t high) {
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(out).count();
    integer(key, ms, low, high);
    out = std::chrono::milliseconds{ms};
  }

  void choice(const char* key, std::string& out, const std::vector<std::string>& allowed) {
    if (const auto* node = find(key)) {
      const auto value = node->value_exact<std::string>();
      if (value && std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) {
        out = *value;
      } else {
        complain_of_value(*node, key, "must be one of " + listed(allowed));
      }
    }
    effective_.insert_or_assign(key, out);
  }

  /// Reports every key that nothing asked for.
  void finish() {
    if (table_ == nullptr)
      return;
    for (const auto& [key, node] : *table_)
      if (!known_.contains(std::string{key.str()}))
        complain(node, std::string{key.str()}, "unknown key; there are " + listed(known_));
  }

  void complain(const toml::node& node, const std::string& key, const std::string& what) {
    errors_.push_back(file_ + ":" + std::to_string(node.source().begin.line) + ": " + prefix_ + key + ": " + what);
  }

 private:
  void complain_of_value(const toml::node& node, const std::string& key, const std::string& what) {
    complain(node, key, what + ", not " + written(node));
  }

  const toml::node* find(const char* key) {
    known_.insert(key);
    return table_ == nullptr ? nullptr : table_->get(key);
  }

  const toml::table* table_;
  std::string prefix_;
  std::string file_;
  config_errors& errors_;
  std::set<std::string> known_;
  toml::table effective_;
};

const std::vector<std::string> log_levels{"debug", "info", "warn", "error", "off"};
constexpr std::int64_t flood_frames_max = 100'000'000; // of the front's limits for floods
constexpr std::int64_t many = std::numeric_limits<std::int32_t>::max();

const toml::table* sub_table(const toml::table& root, const char* name, const std::string& file,
                             config_errors& errors) {
  const auto* node = root.get(name);
  if (node == nullptr)
    return nullptr;
  if (const auto* table = node->as_table())
    return table;
  errors.push_back(file + ":" + std::to_string(node->source().begin.line) + ": " + name + ": must be a table, not " +
                   written(*node));
  return nullptr;
}

void read_pool(const toml::table& table, const std::string& file, config_errors& errors, node_config& config,
               toml::array& effective) {
  table_reader r{&table, "pool.", file, errors};
  pool_config pool;
  std::string role = "unified";
  std::vector<std::string> policies;
  for (const auto name : core::policy_names())
    policies.emplace_back(name);
  r.choice("role", role, {"unified", "prefill", "decode"});
  pool.options.role = role == "prefill"  ? core::pool_role::prefill
                      : role == "decode" ? core::pool_role::decode
                                         : core::pool_role::unified;
  pool.options.name = role;
  r.text("name", pool.options.name);
  r.text("handshake", pool.handshake);
  r.text("advertise", pool.advertise);
  r.integer("ranks", pool.options.ranks_awaited, 1, 1024);
  pool.options.ranks_max = std::max<std::uint16_t>(pool.options.ranks_max, pool.options.ranks_awaited);
  r.integer("ranks_max", pool.options.ranks_max, 1, 1024);
  r.choice("policy", pool.options.policy, policies);
  r.flag("pin_is_hint", pool.options.pin_is_hint);
  r.integer("requests_in_flight_max", pool.options.requests_in_flight_max, 1, 1 << 20);
  r.integer("tokens_in_flight_max", pool.options.tokens_in_flight_max, 1, std::int64_t{1} << 50);
  r.integer("waiting_requests_max", pool.options.waiting_requests_max, 0, 1 << 20);
  r.milliseconds("waiting_time_max_ms", pool.options.waiting_time_max, 1, many);
  r.number("ejected_share_max", pool.options.health.ejected_share_max, 0, 1);
  r.integer("ejection_errors_min", pool.options.health.errors_min, 1, many);
  r.milliseconds("ejection_ms", pool.options.health.ejection_min, 1, 3'600'000);
  r.milliseconds("slow_start_ms", pool.options.slow_start, 0, 600'000);
  r.text("bootstrap_host", pool.options.bootstrap_host);
  r.integer("bootstrap_port", pool.options.bootstrap_port, 1, 65'535);
  auto& tuning = pool.options.tuning;
  r.flag("lockstep", tuning.lockstep);
  r.number("headroom_damage_weight", tuning.headroom_damage_weight, 0, 100);
  r.number("headroom_decode_weight", tuning.headroom_decode_weight, 0, 100);
  r.number("headroom_work_weight", tuning.headroom_work_weight, 0, 100);
  r.integer("headroom_ranks_enough", tuning.headroom_ranks_enough, 0, 1024);
  r.number("headroom_output_share", tuning.headroom_output_share, 0, 1);
  r.flag("headroom_progress", tuning.headroom_progress);
  r.flag("headroom_learn", tuning.headroom_learn);
  r.flag("headroom_prefix", tuning.headroom_prefix);
  r.integer("prefix_block_tokens", pool.options.prefix_block_tokens, 0, 1 << 20);
  r.integer("prefix_blocks_max", tuning.prefix_blocks_max, 1, 1 << 24);
  r.flag("headroom_late_binding", tuning.headroom_late_binding);
  r.number("headroom_credit_chunks", tuning.headroom_credit_chunks, 0, 1000);
  auto& waiting = pool.options.waiting_order;
  r.milliseconds("waiting_patience_ms", waiting.patience, 0, many);
  r.number("waiting_patience_per_work", waiting.patience_per_work, 0, 1e6);
  r.number("waiting_patience_per_queue", waiting.patience_per_queue, 0, 1e6);
  r.number("waiting_largest_share", waiting.largest_share, 0, 1);
  r.number("waiting_largest_factor", waiting.largest_factor, 1, 1e6);
  r.milliseconds("waiting_patience_max_ms", waiting.patience_max, 0, many);
  r.milliseconds("waiting_deadline_lead_ms", waiting.deadline_lead, 0, many);
  r.number("waiting_patience_per_class", waiting.patience_per_class, 1, 1e6);
  r.integer("seed", pool.options.tuning.seed, 0, std::numeric_limits<std::int64_t>::max());
  r.finish();
  effective.push_back(r.effective());
  pool.options.index = static_cast<std::uint16_t>(config.pools.size());
  config.pools.push_back(std::move(pool));
}

} // namespace

node_config default_config() {
  node_config config;
  config.pools.emplace_back();
  config.front.model.max_context_length = 0;
  return config;
}

namespace {

/// host:port with a port from 0 to 65535.
bool is_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size() || text.size() - colon > 6)
    return false;
  const auto digits = text.substr(colon + 1);
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoi(std::string{digits}) <= 65'535;
}

// sockaddr_un has room for 107 bytes; the rest is the socket's name.
constexpr std::size_t state_dir_bytes_max = 60;

std::string handshake_fault(const std::string& endpoint, const std::string& advertise) {
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6)
    return {};
  if (!endpoint.starts_with("tcp://") || !is_address(std::string_view{endpoint}.substr(6)))
    return "is neither tcp://host:port nor ipc://path";
  for (const auto* any : {"tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:"})
    if (endpoint.starts_with(any) && advertise.empty())
      return "names no address that ranks can connect to: their data endpoints are on the same host; set advertise";
  return {};
}

} // namespace

tl::expected<std::string, std::string> read_admin_token(const std::string& path) {
  std::ifstream in{path};
  std::string token;
  if (!in)
    return tl::unexpected{std::string{"cannot be read"}};
  if (!(in >> token) || token.size() < 16)
    return tl::unexpected{std::string{"has no token of at least 16 characters"}};
  return token;
}

config_errors check_config(const node_config& config) {
  config_errors errors;
  const auto complain = [&](const std::string& key, const std::string& value, const std::string& what) {
    errors.push_back(key + ": \"" + value + "\" " + what);
  };
  const auto ms = [](core::duration d) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
  };
  if (!is_address(config.grpc))
    complain("node.grpc", config.grpc, "is not host:port");
  if (!is_address(config.admin))
    complain("node.admin", config.admin, "is not host:port");
  if (const auto tls = io::grpc::check_tls(config.front.server.tls); !tls)
    errors.push_back("front.tls_" + std::string{tls.error().option} + ": " + tls.error().what);
  if (config.state_dir.size() > state_dir_bytes_max)
    complain("node.state_dir", config.state_dir,
             "is longer than 60 bytes, the most that leaves room for a socket's name");
  if (std::find(log_levels.begin(), log_levels.end(), config.log_level) == log_levels.end())
    complain("node.log_level", config.log_level, "is not one of " + listed(log_levels));
  if (config.ready_max_s > 0 && config.ready_with_fewer_s >= config.ready_max_s)
    errors.push_back(fmt::format("node.ready_with_fewer_s: {} is not less than ready_max_s {}, when the process ends",
                                 config.ready_with_fewer_s, config.ready_max_s));
  if (config.restarts.backoff_min > config.restarts.backoff_max)
    errors.push_back("supervision.backoff_min_ms: " + ms(config.restarts.backoff_min) +
                     " is more than backoff_max_ms " + ms(config.restarts.backoff_max));
  std::size_t unified = 0;
  std::size_t prefill = 0;
  std::size_t decode = 0;
  std::set<std::string> names;
  for (const auto& pool : config.pools) {
    const auto& o = pool.options;
    (o.role == core::pool_role::unified ? unified : o.role == core::pool_role::prefill ? prefill : decode) += 1;
    if (!names.insert(o.name).second)
      errors.push_back("pool.name: \"" + o.name + "\" is used twice");
    if (o.ranks_awaited > o.ranks_max)
      errors.push_back("pool.ranks: " + std::to_string(o.ranks_awaited) + " of pool " + o.name +
                       " is more than ranks_max " + std::to_string(o.ranks_max));
    if (o.name.empty())
      errors.push_back("pool.name: must not be empty");
    if (const auto fault = handshake_fault(pool.handshake, pool.advertise); !fault.empty())
      complain("pool.handshake", pool.handshake, fault);
    const auto policies = core::policy_names();
    if (std::find(policies.begin(), policies.end(), o.policy) == policies.end())
      complain("pool.policy", o.policy, "is not one of " + listed(policies));
  }
  if (unified + prefill + decode == 0)
    errors.push_back("pool: at least one is needed");
  if (unified > 1 || prefill > 1 || decode > 1 || (unified == 1 && prefill + decode > 0))
    errors.push_back("pool: a node has one unified pool, or at most one prefill and one decode pool");
  for (const auto& peer : config.allowed_peers)
    if (!io::address_block::parse(peer))
      complain("engine.allowed_peers", peer, "is neither an address nor a block like 10.0.0.0/8");
  if (!config.admin_token_file.empty())
    if (const auto token = read_admin_token(config.admin_token_file); !token)
      complain("node.admin_token_file", config.admin_token_file, token.error());
  if (config.grpc == config.admin && !config.grpc.ends_with(":0"))
    complain("node.admin", config.admin, "is node.grpc too");
  if (config.heartbeat_timeout_ms <= config.heartbeat_interval_ms)
    errors.push_back("engine.heartbeat_timeout_ms: " + std::to_string(config.heartbeat_timeout_ms) +
                     " is not more than heartbeat_interval_ms " + std::to_string(config.heartbeat_interval_ms));
  return errors;
}

namespace {

tl::expected<node_config, config_errors> parse(const std::string& text, const std::string& file,
                                               toml::table& effective) {
  config_errors errors;
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    errors.push_back(file + ":" + std::to_string(e.source().begin.line) + ": " + std::string{e.description()});
    return tl::unexpected{std::move(errors)};
  }
  auto config = default_config();
  config.pools.clear();

  table_reader top{&root, "", file, errors};
  const auto table = [&](const char* name) { return sub_table(root, name, file, errors); };
  for (const auto& [key, node] : root) {
    static const std::set<std::string, std::less<>> tables{"node", "pool",  "supervision", "engine",
                                                           "load", "front", "requests",    "model"};
    if (!tables.contains(key.str()))
      top.complain(node, std::string{key.str()}, "unknown key; there are " + listed(tables));
  }
  {
    table_reader r{table("node"), "node.", file, errors};
    r.text("grpc", config.grpc);
    r.text("admin", config.admin);
    r.text("admin_token_file", config.admin_token_file);
    r.text("state_dir", config.state_dir);
    r.choice("log_level", config.log_level, log_levels);
    r.text("history_file", config.history_file);
    r.text("decision_log", config.decision_log);
    r.integer("decision_log_mb_max", config.decision_log_mb_max, 1, 1'000'000);
    r.flag("fault_injection", config.fault_injection);
    r.number("drain_s", config.drain_s, 0, 86'400);
    r.number("ready_max_s", config.ready_max_s, 0, 86'400);
    r.number("ready_with_fewer_s", config.ready_with_fewer_s, 0, 86'400);
    r.integer("worker_threads", config.worker_threads, 1, 64);
    r.finish();
    effective.insert_or_assign("node", r.effective());
  }
  {
    table_reader r{table("supervision"), "supervision.", file, errors};
    r.integer("restarts_max", config.restarts.restarts_max, 0, many);
    r.milliseconds("restarts_window_ms", config.restarts.window, 1, many);
    r.milliseconds("backoff_min_ms", config.restarts.backoff_min, 0, many);
    r.milliseconds("backoff_max_ms", config.restarts.backoff_max, 0, many);
    r.number("jitter", config.restarts.jitter, 0, 1);
    config.forwarder_restarts_max = config.restarts.restarts_max;
    r.integer("forwarder_restarts_max", config.forwarder_restarts_max, 0, many);
    r.number("park_retry_s", config.park_retry_s, 0.01, 86'400);
    r.finish();
    effective.insert_or_assign("supervision", r.effective());
  }
  {
    table_reader r{table("engine"), "engine.", file, errors};
    r.integer("heartbeat_interval_ms", config.heartbeat_interval_ms, 10, 60'000);
    r.integer("heartbeat_timeout_ms", config.heartbeat_timeout_ms, 20, 120'000);
    r.integer("send_queue_requests_max", config.send_queue_requests_max, 1, 1 << 20);
    r.integer("send_queue_bytes_max", config.send_queue_bytes_max, 1 << 20, std::int64_t{1} << 40);
    r.milliseconds("suspect_after_ms", config.rank_timing.silence.floor, 100, many);
    r.number("hung_factor", config.rank_timing.hung_factor, 1, 1000);
    auto registration_max_s = core::to_seconds(config.rank_timing.registration_max);
    r.number("registration_max_s", registration_max_s, 0, 604'800);
    config.rank_timing.registration_max = core::from_seconds(registration_max_s);
    r.texts("allowed_peers", config.allowed_peers);
    r.number("prefill_tokens_per_s_min", config.rank_timing.silence.prefill_tokens_per_s, 1, 1e9);
    r.finish();
    effective.insert_or_assign("engine", r.effective());
  }
  {
    table_reader r{table("load"), "load.", file, errors};
    r.flag("forwarding", config.load_forwarding);
    r.milliseconds("report_lag_ms", config.ledger.report_lag, 0, 60'000);
    r.milliseconds("report_stale_after_ms", config.ledger.report_stale_after, 1, many);
    r.finish();
    effective.insert_or_assign("load", r.effective());
  }
  {
    table_reader r{table("requests"), "requests.", file, errors};
    r.integer("attempts_max", config.attempts_max, 1, 100);
    r.number("request_time_max_s", config.request_time_max_s, 0.1, 1e7);
    r.integer("managers", config.managers, 1, 16);
    r.integer("streams_max", config.streams_max, 1, core::handle_slots_max);
    r.integer("backlog_batches_max", config.backlog_batches_max, 1, 1 << 20);
    r.integer("backlog_submissions_max", config.backlog_submissions_max, 1, 1 << 20);
    r.finish();
    effective.insert_or_assign("requests", r.effective());
  }
  {
    table_reader r{table("front"), "front.", file, errors};
    r.integer("message_bytes_max", config.front.server.message_bytes_max, 1024, 1 << 30);
    r.integer("samples_max", config.front.samples_max, 1, 1024);
    r.integer("tokens_unsent_max", config.front.tokens_unsent_max, 1, 1 << 30);
    auto& floods = config.front.server.floods;
    auto ping_interval_min_ms = floods.ping_interval_min.count();
    r.integer("ping_interval_min_ms", ping_interval_min_ms, 0, 3'600'000);
    floods.ping_interval_min = std::chrono::milliseconds{ping_interval_min_ms};
    r.integer("ping_strikes_max", floods.ping_strikes_max, 0, flood_frames_max);
    r.integer("control_frames_burst", floods.control.burst, 1, flood_frames_max);
    r.integer("control_frames_per_s", floods.control.per_s, 0, flood_frames_max);
    r.integer("empty_data_burst", floods.empty_data.burst, 1, flood_frames_max);
    r.integer("empty_data_per_s", floods.empty_data.per_s, 0, flood_frames_max);
    r.integer("priorities_burst", floods.priorities.burst, 1, flood_frames_max);
    r.integer("priorities_per_s", floods.priorities.per_s, 0, flood_frames_max);
    r.integer("window_updates_burst", floods.window_updates.burst, 1, flood_frames_max);
    r.integer("window_updates_per_s", floods.window_updates.per_s, 0, flood_frames_max);
    r.integer("resets_burst", floods.resets.burst, 1, flood_frames_max);
    r.integer("resets_per_s", floods.resets.per_s, 0, flood_frames_max);
    r.integer("unread_frames_max", floods.unread_frames_max, 1, flood_frames_max);
    r.text("tls_certificate", config.front.server.tls.certificate);
    r.text("tls_key", config.front.server.tls.key);
    r.text("tls_client_ca", config.front.server.tls.client_ca);
    r.finish();
    effective.insert_or_assign("front", r.effective());
  }
  {
    auto& model = config.front.model;
    table_reader r{table("model"), "model.", file, errors};
    r.text("model_path", model.model_path);
    r.text("served_model_name", model.served_model_name);
    r.text("tokenizer_path", model.tokenizer_path);
    r.text("model_type", model.model_type);
    r.integer("vocab_size", model.vocab_size, 0, many);
    r.integer("max_context_length", model.max_context_length, 0, many);
    std::int64_t eos = -1;
    r.integer("eos_token_id", eos, -1, many);
    if (eos >= 0)
      model.eos_token_ids = {static_cast<std::int32_t>(eos)};
    r.integer("bos_token_id", model.bos_token_id, 0, many);
    r.integer("pad_token_id", model.pad_token_id, 0, many);
    r.finish();
    effective.insert_or_assign("model", r.effective());
  }
  toml::array effective_pools;
  if (const auto* node = root.get("pool")) {
    const auto* pools = node->as_array();
    if (pools == nullptr || !pools->is_array_of_tables())
      top.complain(*node, "pool", "must be a list of tables, [[pool]], not " + written(*node));
    else
      for (const auto& each : *pools)
        read_pool(*each.as_table(), file, errors, config, effective_pools);
  } else {
    read_pool(toml::table{}, file, errors, config, effective_pools);
  }
  effective.insert_or_assign("pool", std::move(effective_pools));
  for (auto& error : check_config(config))
    errors.push_back(file + ": " + error);
  if (!errors.empty())
    return tl::unexpected{std::move(errors)};
  return config;
}

} // namespace

tl::expected<node_config, config_errors> parse_config(const std::string& text, const std::string& file) {
  toml::table effective;
  return parse(text, file, effective);
}

tl::expected<std::string, config_errors> effective_config(const std::string& text, const std::string& file) {
  toml::table effective;
  if (auto parsed = parse(text, file, effective); !parsed)
    return tl::unexpected{std::move(parsed.error())};
  std::ostringstream out;
  out << effective << "\n";
  return out.str();
}

tl::expected<node_config, config_errors> load_config(const std::string& path) {
  std::ifstream in{path};
  if (!in || std::filesystem::is_directory(path))
    return tl::unexpected{config_errors{path + ": cannot be read"}};
  std::ostringstream text;
  text << in.rdbuf();
  return parse_config(text.str(), path);
}

} // namespace rankwise::app
