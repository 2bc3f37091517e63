#pragma once

#include "core/base/time.hpp"
#include "core/supervision/event_log.hpp"
#include "io/http/admin_server.hpp"
#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "record/request_stream.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// What an operator may change in a running node, and what has changed and why.
namespace rankwise::app {

struct operator_backend {
  std::vector<std::string> pools; ///< names by index
  core::event_log& events;
  record::request_stream& requests;
  std::function<core::timestamp()> now;
  double drain_s = 30; ///< of a drain without a deadline
  /// Bearer token that a peer which is not on loopback must show; empty: no such peer may write.
  std::string token;
  /// nullopt: no answer in time.
  std::function<std::optional<rank_command_result>(const rank_command&)> command;
  std::function<std::optional<policy_change_result>(const policy_change&)> change_policy;
  std::function<std::optional<placement_list>(const std::string& rid)> explain;
};

/// What is no UTF-8, such as names that engines and clients chose, is replaced.
[[nodiscard]] io::http_answer as_json(const nlohmann::ordered_json& j, int status = 200);

/// May whoever asks change anything? The answer to give when not.
[[nodiscard]] std::optional<io::http_answer> denied(const std::string& token, const io::http_query& q);

/// POST /ranks/drain, /ranks/undrain, /ranks/remove, /policy; GET /events, /requests/stream, /placements/RID. The
/// backend is copied.
void add_operator_routes(io::admin_server& admin, const operator_backend& backend);

} // namespace rankwise::app
