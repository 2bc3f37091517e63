#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/load/load_report.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rankwise::core {

/// What became of a report. Each value but `accepted` has its own metric.
enum class report_verdict : std::uint8_t {
  accepted = 0,
  repeated = 1,     ///< same sequence as the newest
  out_of_order = 2, ///< older than the newest
  old_epoch = 3,    ///< of another incarnation of the rank
  unknown_rank = 4,
};

inline constexpr std::uint8_t report_verdict_count = 5;
[[nodiscard]] std::string_view to_string(report_verdict v) noexcept;

struct ledger_options {
  /// A report received at t was sampled at some time in [t - report_lag, t]: engines sample at most every 50 ms, and
  /// the sample must travel. A charge counts as contained in a report only when its prompt was seen prefilled by t -
  /// report_lag.
  duration report_lag = std::chrono::milliseconds{60};
  /// Older reports no longer count; the rank is judged by what was placed on it.
  duration report_stale_after = std::chrono::seconds{2};
};

/// What is known about the load of each rank of one pool: its newest report, and the charge of every leg placed on it.
/// A charge is made once, released once, by handle. A report never erases a charge that it cannot have seen, and a leg
/// that ended is subtracted from a report that still counts it.
class ledger {
 public:
  /// `charges_expected`: up to so many the ledger grows without a pause.
  explicit ledger(ledger_options options, std::size_t charges_expected = 0)
      : options_(options), nodes_(std::make_unique<std::pmr::unsynchronized_pool_resource>()), charges_(nodes_.get()) {
    charges_.reserve(charges_expected);
  }

  struct figures {
    std::uint32_t requests = 0;         ///< legs placed and not ended
    std::uint64_t tokens = 0;           ///< estimate of KV tokens in use, see the class comment
    std::uint64_t prefill_tokens = 0;   ///< prompt tokens of legs without a first token
    std::uint64_t work_tokens = 0;      ///< of these, what is expected to be computed rather than found in a cache
    std::uint32_t prefilling = 0;       ///< legs without a first token
    std::uint64_t generated_tokens = 0; ///< so far, by the legs on the rank
    timestamp prefill_since{};          ///< when the rank last began a prompt, by its outputs
    std::uint64_t placed_tokens = 0;    ///< sum of the prompts of all legs, exact
    std::uint64_t prefilled_tokens = 0; ///< prompt tokens done since the rank opened
    std::uint32_t reported_running = 0; ///< by a fresh report; 0 without one
    std::uint32_t reported_waiting = 0;
    std::optional<duration> report_age;
    bool stale = false;
  };

  struct charge {
    std::uint16_t rank = 0;
    rank_epoch epoch = 0;
    std::uint64_t prompt_tokens = 0;
    std::uint64_t work_tokens = 0;  ///< of the prompt, what the rank is expected to compute; the rest is in its cache
    std::uint64_t limit_tokens = 0; ///< prompt + the most it may generate: what the cap on tokens in flight counts
    std::uint32_t attempt = 0;
    bool prefilled = false;
    bool released = false;  ///< prefill charge given back while the leg goes on
    bool contained = false; ///< the newest report counts its prompt
  };

  /// A rank came up under `epoch`: whatever was reported or charged under another one is forgotten. Returns the handles
  /// of the charges dropped.
  std::vector<request_handle> open(std::uint16_t rank, rank_epoch epoch);

  /// The rank is gone: drops its report and its charges, whose handles are returned.
  std::vector<request_handle> close(std::uint16_t rank);

  /// False when the handle is charged already or the rank is not open under that epoch.
  bool add(request_handle handle, const charge& c, timestamp now = {});

  /// The leg's prompt is prefilled. False: unknown handle.
  bool first_token(request_handle handle, timestamp now);

  /// Prefill legs: the charge goes, the leg stays known until `end`. False: unknown, or released before.
  bool release(request_handle handle, timestamp now);

  /// The leg is over. Returns its charge once; nullopt for an unknown handle.
  std::optional<charge> end(request_handle handle, timestamp now);

  [[nodiscard]] const charge* find(request_handle handle) const;

  report_verdict report(const load_report& r);

  /// Tokens generated so far by the legs that `owner` has on the rank, for the time when reports are silent.
  void set_generated(std::uint16_t rank, rank_epoch epoch, owner_id owner, std::uint64_t tokens);
  /// The owner is gone, and its legs were ended: what it last said of its tokens counts no more.
  void forget_owner(owner_id owner);

  [[nodiscard]] figures of(std::uint16_t rank, timestamp now) const;
  [[nodiscard]] const std::optional<load_report>& newest_report(std::uint16_t rank) const;

  [[nodiscard]] std::size_t charge_count() const noexcept { return charges_.size(); }
  /// Notes about legs that a coming report may or may not contain; bounded by what is charged.
  [[nodiscard]] std::size_t remembered(std::uint16_t rank) const {
    return rank < ranks_.size() ? ranks_[rank].prefilled.size() + ranks_[rank].gone.size() : 0;
  }
  [[nodiscard]] std::uint64_t limit_tokens() const noexcept { return limit_tokens_; }
  /// Charged legs of a rank, or of an owner, in the order of their numbers.
  [[nodiscard]] std::vector<request_handle> handles_on(std::uint16_t rank) const;
  [[nodiscard]] std::vector<request_handle> handles_of(owner_id owner) const;
  /// Every charged leg, in the order of their handles: what the owners have placed, if the books agree.
  [[nodiscard]] std::vector<leg_id> charged_legs() const;

 private:
  struct prefilled_charge {
    request_handle handle;
    timestamp at;
  };
  struct released_tokens {
    std::uint64_t tokens;
    timestamp at;
  };
  struct rank_state {
    rank_epoch epoch = 0; // 0: closed
    std::optional<load_report> report;
    std::uint32_t requests = 0;
    std::uint32_t prefilling = 0;
    timestamp prefill_since{};
    std::uint64_t work_tokens = 0;
    std::uint64_t placed_tokens = 0;
    std::uint64_t prefill_tokens = 0;
    std::uint64_t prefilled_tokens = 0;
    std::uint64_t uncontained_tokens = 0; // prompts that the newest report cannot contain
    std::uint64_t gone_tokens = 0;        // tokens that the newest report contains but that have ended since
    std::vector<std::pair<owner_id, std::uint64_t>> generated; // tokens, by owner
    std::deque<prefilled_charge> prefilled;                    // in order of time, until a report contains them
    std::deque<released_tokens> gone;                          // in order of time, until a report can know
  };

  rank_state* state_of(std::uint16_t rank, rank_epoch epoch);
  template <class Belongs>
  [[nodiscard]] std::vector<request_handle> handles_where(Belongs belongs) const;
  [[nodiscard]] static std::uint64_t generated_on(const rank_state& s) noexcept;
  void take_off(rank_state& s, charge& c, timestamp now);
  static void end_prefill(rank_state& s, const charge& c, timestamp now);

  ledger_options options_;
  std::vector<rank_state> ranks_;                                 // by rank number
  std::unique_ptr<std::pmr::unsynchronized_pool_resource> nodes_; // so that a charge costs no allocation
  std::pmr::unordered_map<request_handle, charge> charges_;
  std::uint64_t limit_tokens_ = 0;
};

} // namespace rankwise::core
