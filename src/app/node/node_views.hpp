#pragma once

#include "core/load/load_history.hpp"
#include "core/request/request_intake.hpp"
#include "io/front/scheduler_front.hpp"
#include "io/zmq/engine_hub.hpp"
#include "messages/introspector.hpp"

#include <nlohmann/json.hpp>
#include <prometheus/histogram.h>

#include <string>

/// What the admin HTTP shows: the Introspector's snapshot as JSON and as Prometheus text.
namespace rankwise::app {

[[nodiscard]] nlohmann::ordered_json actors_json(const node_snapshot& snapshot);
[[nodiscard]] nlohmann::ordered_json ranks_json(const node_snapshot& snapshot);
[[nodiscard]] nlohmann::ordered_json requests_json(const request_list& list);
[[nodiscard]] nlohmann::ordered_json status_json(const node_snapshot& snapshot, const core::node_info& info,
                                                 const io::front::model_facts& model);
/// GET /v1/loads in SGLang's shape, with the pool's name beside each rank.
[[nodiscard]] nlohmann::ordered_json loads_json(const std::vector<core::rank_load>& loads,
                                                const std::vector<std::string>& pool_names);

/// The last minutes of each rank, one column per figure: oldest first, null where the rank was not seen.
[[nodiscard]] nlohmann::ordered_json load_history_json(const std::map<core::rank_id, core::load_history::series>& ranks,
                                                       const std::vector<std::string>& pool_names);

struct metrics_input {
  const node_snapshot& snapshot;
  const core::node_info& info;
  const io::engine_hub_counters& hub;
  const io::front::front_counters& front;
  const prometheus::Histogram& dispatch;
  const prometheus::Histogram& decision;
  std::uint64_t decision_lines_lost = 0;
};
[[nodiscard]] std::string metrics_text(const metrics_input& input);

} // namespace rankwise::app
