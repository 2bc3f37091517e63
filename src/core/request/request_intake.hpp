#pragma once

#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/request/request.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The way in: what a front may ask of the node. Implemented by the wiring in src/app on top of the actors.
namespace rankwise::core {

/// Figures of one rank for GetLoads and GET /v1/loads. Counts come from the engine's newest report; a rank without one
/// has `report_age_s` < 0 and the ledger's own figures.
struct rank_load {
  rank_id rank;
  std::uint32_t num_running = 0;
  std::uint32_t num_waiting = 0;
  std::uint64_t kv_used_tokens = 0;
  std::uint64_t kv_total_tokens = 0;
  std::uint32_t max_running_requests = 0; ///< From the registration; 0 = not known.
  double report_age_s = -1;
};

/// What a front tells about the node behind it.
struct node_info {
  /// Every awaited rank joined once, or was waited for long enough, and each pool has a rank that can take work.
  bool ready = false;
  std::string not_ready_reason;           ///< For people; empty when ready.
  std::vector<std::string> refused_ranks; ///< Those that have not registered since, each with the cause.
  std::uint32_t dp_size = 0;              ///< Ranks of the pool that decodes.
  std::uint64_t max_total_num_tokens = 0; ///< Sum of the KV capacities of that pool.
  std::uint32_t max_running_requests = 0; ///< Per rank, from the registration.
  std::uint32_t max_model_len = 0;        ///< From the registration; 0 = no rank yet.
  std::uint32_t requests_in_flight = 0;
  std::string engine_version;      ///< As registered, e.g. "sglang-0.5.23".
  std::string model_name;          ///< What the ranks registered that they serve; empty = nothing, or no rank yet.
  std::string disaggregation_mode; ///< "null", "prefill" or "decode", as SGLang names it.
};

class request_intake {
 public:
  virtual ~request_intake() = default;

  /// Hand a validated request over. Never blocks. Its fate arrives at the sink: a refusal is an event with an outcome.
  /// Returns who owns the request from now on: the same owner in cancel() and in stream_sink::fail_owner(). 0: it was
  /// refused at once.
  virtual owner_id submit(stream_id stream, request_ptr request) noexcept = 0;

  /// The client of `stream` left, or its deadline passed. Unknown or ended streams are no error.
  virtual void cancel(stream_id stream, owner_id owner, failure why) noexcept = 0;

  /// Abort by rid; the stream with that rid ends as cancelled(aborted_by_request). Unknown rids are no error.
  virtual void abort(std::string rid) noexcept = 0;

  /// Newest known figures; may be up to a second old, never blocks.
  [[nodiscard]] virtual node_info info() const = 0;
  [[nodiscard]] virtual std::vector<rank_load> loads() const = 0;
};

} // namespace rankwise::core
