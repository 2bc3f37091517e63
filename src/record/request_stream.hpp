#pragma once

#include "core/placement/decision_recorder.hpp"

#include <nlohmann/json.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
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
  static constexpr std::size_t answer_max = 1'000;                ///< of one take
  static constexpr core::duration wanted_for = std::chrono::seconds{30}; ///< after the last take
  /// One that ended without output may be placed once more; for so long it is not told.
  static constexpr core::duration again_within = std::chrono::seconds{2};

  /// `block_tokens`: of one block; 0 where the pools tell none.
  explicit request_stream(std::uint32_t block_tokens = 0) : block_tokens_(block_tokens) {}

  struct taken {
    std::vector<std::shared_ptr<const recorded_request>> requests;
    std::uint64_t last = 0; ///< what to take after next
    std::uint64_t lost = 0; ///< of those up to `last`: no longer kept
    bool more = false;      ///< there are some after `last` already
  };
  /// Those with a number above `after`, oldest first; none: just where the stream is now. From now on requests that
  /// arrive are kept for `wanted_for`.
  [[nodiscard]] taken take(std::optional<std::uint64_t> after, core::timestamp now);
  [[nodiscard]] std::uint32_t block_tokens() const noexcept { return block_tokens_; }

  void arrived(const core::leg_request& leg);
  void ended(core::request_handle handle, std::optional<std::uint32_t> output_tokens, core::timestamp now);
  /// Of a pair: its decode leg has a rank.
  void decodes(core::request_handle handle);
  /// Of a pair: its prefill leg is gone. Means nothing while its decode leg has a rank, for then that one's end is its.
  void prefill_left(core::request_handle handle, core::timestamp now);
  /// Cheap: nothing is to be told while this is false.
  [[nodiscard]] bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

 private:
  struct open_request {
    std::shared_ptr<recorded_request> request;
    std::optional<core::timestamp> ended_at; ///< without output, so that it may come again
    bool decodes = false;                    ///< its decode leg has a rank
  };
  using open_requests = std::map<core::request_handle, open_request>; // handles count up: the first is the oldest

  void forget_oldest(); // of those that ended
  void make_room_for_blocks(std::size_t count);
  void end(open_requests::iterator entry);
  void end_without_output(open_requests::iterator entry, core::timestamp now);
  void end_what_came_not_again(core::timestamp now);

  const std::uint32_t block_tokens_;
  std::atomic<bool> wanted_{false};
  std::mutex mutex_; ///< guards those below
  core::timestamp wanted_until_{};
  open_requests open_;
  std::deque<std::pair<core::timestamp, core::request_handle>> without_output_;
  std::deque<std::shared_ptr<const recorded_request>> ended_;
  std::uint64_t last_ = 0;
  std::size_t blocks_ = 0;      // of all
  std::size_t open_blocks_ = 0; // of those that are open
};

/// Tells a request_stream what passes one pool's controller.
class stream_recorder final : public core::decision_recorder {
 public:
  stream_recorder(request_stream& stream, core::pool_role role) : stream_(stream), role_(role) {}

  void progress(const core::batch_progress& p, core::timestamp now) noexcept override;
  void ended(core::request_handle handle, core::timestamp now, std::uint32_t generated) noexcept override;
  void waits(const core::leg_request& leg) noexcept override;
  void left(core::request_handle handle, core::timestamp now) noexcept override;
  void decided(const core::leg_request& leg, const core::placement_decision& d) noexcept override;

 private:
  request_stream& stream_;
  core::pool_role role_;
};

// -- the file of `rankwise record`: a head, then a line for each request
// -----------------------------------------------------------------------------------

inline constexpr int request_file_version = 1;
/// Of one request, as much as readers of the file take; the rest of a longer prompt is not told.
inline constexpr std::size_t request_blocks_max = 65'536;
[[nodiscard]] nlohmann::json request_file_head(std::uint32_t block_tokens);
/// Times in seconds since `origin`.
[[nodiscard]] nlohmann::json request_line(const recorded_request& request, core::timestamp origin);

} // namespace rankwise::record
