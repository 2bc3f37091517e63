#pragma once

#include "core/ids.hpp"
#include "core/load_report.hpp"
#include "core/time.hpp"

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
  std::uint64_t prefill_tokens = 0;   ///< Prompt tokens placed whose first token was not seen yet.
  std::uint64_t kv_capacity = 0;      ///< Tokens, as registered.
  std::uint32_t max_running = 0;      ///< Requests, as registered.
  double share = 1.0;                 ///< Slow start: (0, 1]; 1 = full share.
  std::optional<duration> report_age; ///< None: nothing was reported in this epoch.
  bool stale = false;                 ///< The report is too old to count; `tokens` is the ledger's own sum.
};

struct placement_request {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_new_tokens = 0;
  std::optional<std::int64_t> bootstrap_room;
  std::uint32_t dp_size = 1; ///< Ranks of the pool, present or not: what engines reduce rooms by.
};

struct choice {
  std::uint16_t rank = 0;
  double score = 0; ///< Lower is better; 0 for rules without a score.
};

class policy {
 public:
  virtual ~policy() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Ranks are sorted by number and never empty. nullopt: the rule names a rank that cannot take work now
  /// (follow_bootstrap_room); the request is refused rather than sent to another rank silently.
  [[nodiscard]] virtual std::optional<choice> choose(std::span<const rank_view> ranks,
                                                     const placement_request& request) = 0;

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

  /// A new incarnation of the rank takes work: nothing of the old one is on it.
  virtual void on_rank_opened(std::uint16_t rank) { static_cast<void>(rank); }

  /// A report that the ledger accepted.
  virtual void on_report(const load_report& report) { static_cast<void>(report); }
};

struct policy_options {
  std::uint64_t seed = 1;
  double headroom_request_weight = 0.1; ///< weight of requests / max_running beside tokens / kv_capacity
  double headroom_prefill_weight = 1.0; ///< extra weight of tokens that are still to be prefilled
  double headroom_output_share = 0.25;  ///< share of max_new_tokens that a request is expected to generate
};

/// Names: headroom, round_robin, total_requests, total_tokens, total_tokens_uncharged, follow_bootstrap_room,
/// power_of_two. nullptr: no such policy.
[[nodiscard]] std::unique_ptr<policy> make_policy(std::string_view name, const policy_options& options);
[[nodiscard]] std::span<const std::string_view> policy_names() noexcept;

} // namespace rankwise::core
