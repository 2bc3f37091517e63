#pragma once

#include "core/placement/policies/by_rank.hpp"
#include "core/placement/policies/prefix_map.hpp"
#include "core/placement/policy.hpp"

#include <optional>
#include <random>

/// The rules of other projects, re-created for comparison with the book-keeping that they have there. What each learns
/// from reports, and how old those are, is the load path's affair.
namespace rankwise::core {

/// vLLM's data-parallel balancer. `counts`: to mid 2026, 4 * waiting + running of the last push, each placement since
/// counted as waiting. `in_flight`: its successor, the larger of the client's own requests in flight and the pushed
/// waiting + running, plus 6 * waiting * (KV use - 0.5) when something waits.
class vllm final : public policy {
 public:
  enum class rule { counts, in_flight };
  explicit vllm(rule r) : rule_(r) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return rule_ == rule::counts ? "vllm_counts" : "vllm";
  }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request&) const override;
  void on_placed(std::uint16_t rank, const placement_request&) override { ++state_[rank].placed; }
  void on_report(const load_report& report) override;
  void on_rank_opened(std::uint16_t rank) override { state_[rank] = {}; }

 private:
  struct rank_state {
    std::uint32_t running = 0;
    std::uint32_t waiting = 0;
    double kv_share = 0;
    std::uint32_t placed = 0; ///< since the last report
  };
  rule rule_;
  by_rank<rank_state> state_;
  std::uint32_t start_ = 0;
};

/// NVIDIA Dynamo's KV router with temperature 0: blocks still to be prefilled, with the new prompt less what the rank
/// has of it, plus blocks of the requests that decode; from its own book-keeping only.
class dynamo final : public policy {
 public:
  explicit dynamo(const policy_options& options) : random_(options.seed), prefixes_(options.prefix_blocks_max) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "dynamo"; }
  [[nodiscard]] bool uses_blocks() const noexcept override { return true; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
  void on_placed(std::uint16_t rank, const placement_request&) override;
  void on_rank_opened(std::uint16_t rank) override { prefixes_.forget(rank); }

 private:
  std::mt19937_64 random_;
  prefix_map prefixes_;
};

/// smg: (tokens that wait + tokens placed since the report) / throughput + 0.15 * k / (1 - k), k = KV use; over all
/// ranks, or over two at random.
class smg_load final : public policy {
 public:
  smg_load(const policy_options& options, bool two) : two_(two), random_(options.seed) {}

  [[nodiscard]] std::string_view name() const noexcept override { return two_ ? "smg_power_of_two" : "smg_least_load"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request&) const override;
  void on_placed(std::uint16_t rank, const placement_request& request) override {
    state_[rank].placed_tokens += request.prompt_tokens;
  }
  void on_report(const load_report& report) override;
  void on_rank_opened(std::uint16_t rank) override { state_[rank] = {}; }

 private:
  struct rank_state {
    std::uint32_t waiting = 0;
    double kv_share = 0;
    std::uint64_t placed_tokens = 0;
  };
  bool two_;
  std::mt19937_64 random_;
  by_rank<rank_state> state_;
};

/// smg's Rust servicer: its own requests in flight, the lowest rank among equals.
class fewest_in_flight final : public policy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "smg_servicer"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
  [[nodiscard]] std::optional<double> score_of(const rank_view& rank, const placement_request&) const override {
    return rank.requests;
  }
};

/// llm-d's endpoint picker with the weights of its guides: queue 2, KV use 2, prefix 3; the highest sum wins, by chance
/// among equals. Scorers give 0 to 1.
class llm_d final : public policy {
 public:
  explicit llm_d(const policy_options& options) : random_(options.seed), prefixes_(options.prefix_blocks_max) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "llm_d"; }
  [[nodiscard]] bool uses_blocks() const noexcept override { return true; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
  void on_placed(std::uint16_t rank, const placement_request&) override;
  void on_report(const load_report& report) override;
  void on_rank_opened(std::uint16_t rank) override {
    state_[rank] = {};
    prefixes_.forget(rank);
  }

 private:
  struct rank_state {
    std::uint32_t waiting = 0;
    double kv_share = 0;
  };
  std::mt19937_64 random_;
  prefix_map prefixes_;
  by_rank<rank_state> state_;
};

/// The prompt's first block decides (rendezvous hashing): the same beginning always goes to the same rank while that is
/// there. The best hit rate, and no eye for load.
class prefix_hash final : public policy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "prefix_hash"; }
  [[nodiscard]] bool uses_blocks() const noexcept override { return true; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;
};

class random_rank final : public policy {
 public:
  explicit random_rank(const policy_options& options) : random_(options.seed) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "random"; }
  [[nodiscard]] std::optional<choice> choose(std::span<const rank_view> ranks, const placement_request&) override;

 private:
  std::mt19937_64 random_;
};

} // namespace rankwise::core
