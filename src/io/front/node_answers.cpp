#include "io/front/node_answers.hpp"

#include "io/front/model_naming.hpp"
#include "io/front/sglang_scheduler.pb.h"
#include "io/grpc/protocol.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <string>

namespace rankwise::io::front {

namespace {

namespace pb = ::sglang::grpc::scheduler;

std::int32_t clamp32(std::uint64_t value) noexcept {
  return static_cast<std::int32_t>(
      std::min<std::uint64_t>(value, static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())));
}

double share(double part, double whole) noexcept {
  return whole > 0 ? part / whole : 0.0;
}

std::string iso8601(std::chrono::system_clock::time_point at) {
  const auto seconds = std::chrono::system_clock::to_time_t(at);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 40> text{};
  const auto size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return {text.data(), size};
}

double unix_seconds(std::chrono::system_clock::time_point at) {
  return std::chrono::duration<double>(at.time_since_epoch()).count();
}

// "sglang-0.5.23", as a rank registers itself, to the bare version that the gateway shows.
std::string bare_version(const std::string& registered) {
  constexpr std::string_view prefix = "sglang-";
  return registered.starts_with(prefix) ? registered.substr(prefix.size()) : registered;
}

struct sections {
  bool queues = false;
  bool disaggregation = false;
};

tl::expected<sections, grpc::status> read_sections(const pb::GetLoadsRequest& request) {
  static constexpr std::array<std::string_view, 7> valid{"core", "memory", "spec", "lora", "disagg", "queues", "all"};
  sections out{request.include().empty(), request.include().empty()};
  for (const auto& name : request.include()) {
    if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
      return tl::unexpected(grpc::status{grpc::status_code::invalid_argument,
                                         "include: " + std::string{grpc::cut_text(name, 64)} +
                                             " is not one of core, memory, spec, lora, disagg, queues, all"});
    }
    out.queues = out.queues || name == "queues" || name == "all";
    out.disaggregation = out.disaggregation || name == "disagg" || name == "all";
  }
  return out;
}

void add_value(::google::protobuf::Struct& to, const std::string& key, const std::string& value) {
  (*to.mutable_fields())[key].set_string_value(value);
}

void add_value(::google::protobuf::Struct& to, const std::string& key, double value) {
  (*to.mutable_fields())[key].set_number_value(value);
}

} // namespace

tl::expected<void, grpc::status> fill_loads(const pb::GetLoadsRequest& request, const core::node_info& node,
                                            const std::vector<core::rank_load>& ranks, std::uint16_t pool,
                                            std::chrono::system_clock::time_point now, pb::GetLoadsResponse& out) {
  const auto wanted = read_sections(request);
  if (!wanted) {
    return tl::unexpected(wanted.error());
  }
  if (request.has_dp_rank() && request.dp_rank() < 0) {
    return tl::unexpected(grpc::status{grpc::status_code::invalid_argument,
                                       "dp_rank: " + std::to_string(request.dp_rank()) + " is negative"});
  }
  double usage = 0;
  double utilization = 0;
  auto& total = *out.mutable_aggregate();
  for (const auto& rank : ranks) {
    if (rank.rank.pool != pool || (request.has_dp_rank() && request.dp_rank() != rank.rank.rank)) {
      continue;
    }
    auto& load = *out.add_loads();
    load.set_dp_rank(rank.rank.rank);
    load.set_num_running_reqs(clamp32(rank.num_running));
    load.set_num_waiting_reqs(clamp32(rank.num_waiting));
    load.set_num_total_reqs(clamp32(std::uint64_t{rank.num_running} + rank.num_waiting));
    load.set_num_used_tokens(clamp32(rank.kv_used_tokens));
    load.set_max_total_num_tokens(clamp32(rank.kv_total_tokens));
    load.set_token_usage(share(static_cast<double>(rank.kv_used_tokens), static_cast<double>(rank.kv_total_tokens)));
    load.set_max_running_requests(clamp32(rank.max_running_requests));
    load.set_utilization(share(rank.num_running, rank.max_running_requests));
    if (wanted->queues) {
      load.mutable_queues()->set_waiting(clamp32(rank.num_waiting));
    }
    if (wanted->disaggregation && !node.disaggregation_mode.empty() && node.disaggregation_mode != "null") {
      load.mutable_disaggregation()->set_mode(node.disaggregation_mode);
    }
    total.set_total_running_reqs(total.total_running_reqs() + load.num_running_reqs());
    total.set_total_waiting_reqs(total.total_waiting_reqs() + load.num_waiting_reqs());
    usage += load.token_usage();
    utilization += load.utilization();
  }
  const auto count = static_cast<double>(out.loads_size());
  total.set_total_reqs(total.total_running_reqs() + total.total_waiting_reqs());
  total.set_avg_token_usage(share(usage, count));
  total.set_avg_utilization(share(utilization, count));
  out.set_timestamp(iso8601(now));
  out.set_version(bare_version(node.engine_version));
  out.set_dp_rank_count(out.loads_size());
  return {};
}

void fill_model_info(const model_facts& model, const core::node_info& node, pb::GetModelInfoResponse& out) {
  const auto context = model.max_context_length > 0 ? model.max_context_length : clamp32(node.max_model_len);
  const auto names = names_of(model, node.model_name);
  out.set_model_path(names.model_path);
  out.set_tokenizer_path(names.tokenizer_path);
  out.set_is_generation(true);
  out.set_default_sampling_params_json(model.default_sampling_params_json);
  out.set_weight_version(model.weight_version);
  out.set_served_model_name(names.served_model_name);
  out.set_max_context_length(context);
  out.set_max_req_input_len(std::max(context - 1, 0));
  out.set_vocab_size(model.vocab_size);
  out.set_model_type(model.model_type);
  for (const auto& name : model.architectures) {
    out.add_architectures(name);
  }
  for (const auto id : model.eos_token_ids) {
    out.add_eos_token_ids(id);
  }
  out.set_pad_token_id(model.pad_token_id);
  out.set_bos_token_id(model.bos_token_id);
}

void fill_server_info(const front_options& options, const core::node_info& node, const server_times& times,
                      pb::GetServerInfoResponse& out) {
  auto& args = *out.mutable_server_args();
  const auto names = names_of(options.model, node.model_name);
  add_value(args, "model_path", names.model_path);
  add_value(args, "served_model_name", names.served_model_name);
  add_value(args, "tokenizer_path", names.tokenizer_path);
  add_value(args, "dp_size", std::max(node.dp_size, 1U));
  add_value(args, "tp_size", 1);
  add_value(args, "disaggregation_mode", node.disaggregation_mode.empty() ? "null" : node.disaggregation_mode);
  add_value(args, "load_balance_method", options.load_balance_method);
  // The gateway reads this one as the whole worker's window, while each scheduler states its own share.
  if (node.max_running_requests > 0) {
    add_value(args, "max_running_requests",
              static_cast<double>(node.max_running_requests) * static_cast<double>(std::max(node.dp_size, 1U)));
  }
  auto& scheduler = *out.mutable_scheduler_info();
  add_value(scheduler, "max_total_num_tokens", static_cast<double>(node.max_total_num_tokens));
  add_value(scheduler, "max_running_requests", node.max_running_requests);
  out.set_active_requests(clamp32(node.requests_in_flight));
  out.set_is_paused(false);
  out.set_last_receive_timestamp(unix_seconds(times.last_request));
  out.set_uptime_seconds(times.uptime_s);
  out.set_sglang_version(bare_version(node.engine_version));
  out.set_server_type("grpc");
  out.mutable_start_time()->set_seconds(static_cast<std::int64_t>(unix_seconds(times.started)));
  out.set_max_total_num_tokens(clamp32(node.max_total_num_tokens));
}

} // namespace rankwise::io::front
