#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/load/load_report.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// How a rank is chosen: plain classes behind one interface, without actors, sockets or clocks.
namespace rankwise::core {

/// One rank that may take the request, as the ledger sees it now.
struct rank_view {
  std::uint16_t rank = 0;
  std::uint32_t requests = 0;         ///< Placed and not ended, exact.
  std::uint64_t tokens = 0;           ///< KV tokens: newest report plus the charges that it cannot contain.
  std::uint64_t prefill_tokens = 0;   ///< Prompt tokens of requests without a first token.
  std::uint64_t work_tokens = 0;      ///< Of these, what is expected to be computed rather than found in a cache.
  std::uint32_t prefilling = 0;       ///< Of `requests`: those without a first token.
  std::uint64_t placed_tokens = 0;    ///< Prompts of all requests on it, exact.
  std::uint64_t generated_tokens = 0; ///< So far, by the requests that are on the rank.
  std::uint64_t kv_capacity = 0;      ///< Tokens, as registered.
  std::uint32_t max_running = 0;      ///< Requests, as registered.
  std::uint64_t chunk_tokens = 0;     ///< Prompt tokens of one step at most, as registered; 0 = not known.
  std::uint32_t reported_running = 0; ///< by the newest report, whoever placed them; 0 without a fresh one
  std::uint32_t reported_waiting = 0;
  timestamp prefill_since{};          ///< When the rank last began a prompt, as far as one can see from its outputs.
  double share = 1.0;                 ///< Slow start: (0, 1]; 1 = full share.
  std::optional<duration> report_age; ///< None: nothing was reported in this epoch.
  bool stale = false;                 ///< The report is too old to count; `tokens` is the ledger's own sum.
};

struct placement_request {
  request_handle handle = 0;
  timestamp now{};
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_new_tokens = 0;
  std::optional<std::int64_t> bootstrap_room;
  std::uint32_t dp_size = 1; ///< Ranks of the pool, present or not: what engines reduce rooms by.
  /// Hash of each full block of the prompt, chained, so that equal hashes mean equal prompts up to there.
  std::span<const std::uint64_t> blocks{};
  std::uint32_t block_tokens = 0;            ///< of one block
  bool needs_prefill = true;                 ///< false: its KV comes from elsewhere (decode pools)
  bool may_wait = false;                     ///< the caller can keep it and ask again when something changed
  std::int32_t priority = 0;                 ///< class of those who wait; a higher one goes first
  std::optional<timestamp> deadline{};       ///< of its last token
  std::optional<timestamp> first_token_by{}; ///< of its first
};

struct choice {
  std::uint16_t rank = 0;
  double score = 0;                ///< Lower is better; 0 for rules without a score.
  bool wait = false;               ///< Better ask again than send it there now; only when the request may wait.
  std::uint64_t cached_tokens = 0; ///< prompt tokens that the rank is expected to have already
};

/// What a request that waits for a rank needs of it.
struct waiting_estimate {
  double work_s = 0;   ///< of computing its prompt
  double to_end_s = 0; ///< from then to its last token, with that work
};

/// A leg whose first token was seen, or that is over.
struct leg_progress {
  std::uint16_t rank = 0;
  request_handle handle = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t work_tokens = 0; ///< of these, what the rank was expected to compute
  std::uint64_t generated_tokens = 0;
  bool prefilled = true; ///< of one that is over: its first token was seen
  timestamp at{};
  std::optional<std::uint64_t> cached_tokens; ///< of the prompt, by the engine's word; none where it has not spoken
  bool of_prefill_rank = false;               ///< a leg that ends when its prompt is computed, without being aborted
};

/// What one output batch of a rank, which is one step of its engine, showed.
struct step_observation {
  std::uint16_t rank = 0;
  timestamp at{};
  std::uint32_t prefilling_after = 0;  ///< requests on the rank without a first token, now
  std::uint32_t requests_after = 0;    ///< on the rank now
  std::uint64_t kv_tokens = 0;         ///< on the rank, by the ledger
  std::uint64_t report_sequence = 0;   ///< of the newest report, in this epoch; 0 = none that is fresh
  std::uint32_t reported_requests = 0; ///< running and waiting there by that report, whoever placed them
  std::uint32_t requests_before = 0;   ///< on the rank before this step ended any
  std::uint64_t prefill_tokens = 0;    ///< of kv_tokens: prompts without a first token
  std::uint64_t chunk_tokens = 0;      ///< prompt tokens that the rank computes in a step; 0 = not registered
};

class policy {
 public:
  virtual ~policy() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Ranks are sorted by number and never empty. nullopt: the rule names a rank that cannot take work now
  /// (follow_bootstrap_room); the request is refused rather than sent to another rank silently.
  [[nodiscard]] virtual std::optional<choice> choose(std::span<const rank_view> ranks,
                                                     const placement_request& request) = 0;

  /// Whether placement_request::blocks means anything to it.
  [[nodiscard]] virtual bool uses_blocks() const noexcept { return false; }

  /// Of the last choose(), in the order of its ranks; empty: the rule keeps none. Valid until the next call.
  [[nodiscard]] virtual std::span<const double> last_scores() const noexcept { return {}; }

  /// In larger pools it is enough to offer it so many ranks, drawn at random; 0 = it wants to see all.
  [[nodiscard]] virtual std::size_t ranks_enough() const noexcept { return 0; }
  /// Ranks that should be among those then.
  [[nodiscard]] virtual std::span<const std::uint16_t> preferred(const placement_request& request) const {
    static_cast<void>(request);
    return {};
  }

  /// What `choose` compares, for an operator who asks why; nullopt: the rule has no score. Changes nothing.
  [[nodiscard]] virtual std::optional<double> score_of(const rank_view& rank, const placement_request& request) const {
    static_cast<void>(rank);
    static_cast<void>(request);
    return std::nullopt;
  }

  /// The request was charged to `rank`, whether this policy chose it or a pin did.
  virtual void on_placed(std::uint16_t rank, const placement_request& request) {
    static_cast<void>(rank);
    static_cast<void>(request);
  }

  virtual void on_first_token(const leg_progress& leg) { static_cast<void>(leg); }
  virtual void on_ended(const leg_progress& leg) { static_cast<void>(leg); }
  virtual void on_step(const step_observation& step) { static_cast<void>(step); }

  /// Those who wait are asked for in order of their work, least first, within their class; nullopt: in order of
  /// arrival.
  [[nodiscard]] virtual std::optional<waiting_estimate> waiting_order(const placement_request& request) const {
    static_cast<void>(request);
    return std::nullopt;
  }

  /// A new incarnation of the rank takes work: nothing of the old one is on it.
  virtual void on_rank_opened(std::uint16_t rank) { static_cast<void>(rank); }
  /// It is gone, and what was placed on it too.
  virtual void on_rank_closed(std::uint16_t rank) { static_cast<void>(rank); }

  /// A report that the ledger accepted.
  virtual void on_report(const load_report& report) { static_cast<void>(report); }
};

struct policy_options {
  std::uint64_t seed = 1;
  std::size_t headroom_ranks_enough = 32;  ///< in pools larger than that, headroom looks at so many, drawn at random
  std::size_t prefix_blocks_max = 1 << 16; ///< prompt blocks remembered for each rank
  bool lockstep = false; ///< the pool's ranks step together (DP attention): a step lasts as long as the slowest one's
  double headroom_damage_weight = 0.005; ///< of a second that other streams are delayed, beside one to the first token
  double headroom_decode_weight = 1;     ///< of a second of the rank's decode step
  double headroom_work_weight = 1;       ///< of a second of prompt computing, wherever it is: what a cache saves all
  double headroom_output_share = 0.3;    ///< of the expected output for which KV must be free
  bool headroom_progress = true;         ///< count what steps since can have computed of a prompt
  bool headroom_learn = true;            ///< learn step times; off: the H100 figures of step_pace
  bool headroom_prefix = true;           ///< prefer ranks that have the prompt's beginning
  bool headroom_late_binding = true;     ///< let requests wait while every rank's next steps are covered
  double headroom_credit_chunks = 3;     ///< chunks of prompts that a rank is given ahead
};

/// nullptr: no such policy, see policy_names().
[[nodiscard]] std::unique_ptr<policy> make_policy(std::string_view name, const policy_options& options);
[[nodiscard]] std::span<const std::string_view> policy_names() noexcept;

} // namespace rankwise::core
