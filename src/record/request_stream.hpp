#pragma once

#include "core/decision_recorder.hpp"

#include <nlohmann/json.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

/// The requests of a node as they came: when, how long, and with what beginnings in common. Not what they said.
namespace rankwise::record {

struct recorded_request {
  std::uint64_t number = 0; ///< 1, 2, ... in order of ending
  core::timestamp arrival{};
  std::uint64_t input_tokens = 0;
  std::optional<std::uint32_t> output_tokens; ///< none: it ended before its engine ended it
  std::uint64_t max_new_tokens = 0;
  std::int32_t priority = 0;
  std::optional<double> first_token_within_s; ///< the client's wish
  std::vector<std::uint64_t> blocks;          ///< chained hashes of its full blocks, where the policy wants them
};

/// Keeps the newest requests that ended, while somebody takes them. Any thread.
class request_stream {
 public:
  static constexpr std::size_t requests_max = 16'384;             ///< kept; the oldest go first and count as lost
  static constexpr std::size_t blocks_max = std::size_t{1} << 21; ///< of all that are kept or open
  static constexpr core::duration wanted_for = std::chrono::seconds{30}; ///< after the last take

  struct taken {
    std::vector<recorded_request> requests;
    std::uint64_t last = 0; ///< number of the newest that ended, kept or not
    std::uint64_t lost = 0; ///< of those after `after`: no longer kept
    std::uint32_t block_tokens = 0;
  };
  /// Those with a number above `after`, oldest first. From now on requests that arrive are kept for `wanted_for`.
  [[nodiscard]] taken take(std::uint64_t after, core::timestamp now);

  void arrived(const core::leg_request& leg);
  void ended(core::request_handle handle, std::optional<std::uint32_t> output_tokens);
  /// Cheap: nothing is to be told while this is false.
  [[nodiscard]] bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

 private:
  void forget_oldest();

  std::atomic<bool> wanted_{false};
  std::mutex mutex_; ///< guards those below
  core::timestamp wanted_until_{};
  std::unordered_map<core::request_handle, recorded_request> open_;
  std::deque<recorded_request> ended_;
  std::uint64_t last_ = 0;
  std::size_t blocks_ = 0;
  std::uint32_t block_tokens_ = 0;
};

/// Tells a request_stream what passes one pool's controller.
class stream_recorder final : public core::decision_recorder {
 public:
  stream_recorder(request_stream& stream, core::pool_role role) : stream_(stream), role_(role) {}

  void progress(const core::batch_progress& p, core::timestamp now) noexcept override;
  void ended(core::request_handle handle, core::timestamp now, std::uint32_t generated) noexcept override;
  void waits(const core::leg_request& leg) noexcept override;
  void decided(const core::leg_request& leg, const core::placement_decision& d) noexcept override;

 private:
  request_stream& stream_;
  core::pool_role role_;
};

// -- the file of `rankwise record`: a head, then a line for each request
// -----------------------------------------------------------------------------------

inline constexpr int request_file_version = 1;
[[nodiscard]] nlohmann::json request_file_head(std::uint32_t block_tokens);
/// Times in seconds since `origin`.
[[nodiscard]] nlohmann::json request_line(const recorded_request& request, core::timestamp origin);

} // namespace rankwise::record
