#pragma once

#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/base/time.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// The history of requests as RequestManager decided it, and the checker of its promises.
namespace rankwise::core {

enum class history_kind : std::uint8_t {
  accepted = 0, ///< the stream has its first rank
  placed = 1,   ///< a sample was given to (rank, epoch) under an attempt
  tokens = 2,   ///< tokens [first_index, first_index + count) were sent to the client
  finished = 3, ///< a sample is complete
  outcome = 4,  ///< the stream ended
};

[[nodiscard]] std::string_view to_string(history_kind k) noexcept;

struct history_event {
  timestamp at{};
  history_kind kind = history_kind::accepted;
  stream_id stream = 0;
  std::uint32_t sample = 0;
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  rank_id rank;
  rank_epoch epoch = 0;
  std::uint32_t first_index = 0;
  std::uint32_t count = 0;
  outcome_kind ended_as = outcome_kind::completed;
  failure reason = failure::none;
};

/// Takes the events in the order in which they were decided. Must not throw.
class history_recorder {
 public:
  virtual ~history_recorder() = default;
  virtual void record(const history_event& event) noexcept = 0;
};

/// Checks a history: each accepted stream has one outcome; tokens of a sample come as 0..k once and in order; nothing
/// follows the outcome; tokens come from the rank, epoch and attempt that the sample was last placed on.
class history_checker final : public history_recorder {
 public:
  void record(const history_event& event) noexcept override;

  /// Call at the end of a run in which every request was waited for: streams without an outcome are violations.
  void finish();

  [[nodiscard]] const std::vector<std::string>& violations() const noexcept { return violations_; }
  [[nodiscard]] std::uint64_t accepted() const noexcept { return accepted_; }
  [[nodiscard]] std::uint64_t ended() const noexcept { return ended_; }

 private:
  struct sample_state {
    request_handle handle = 0;
    std::uint32_t attempt = 0;
    rank_id rank;
    rank_epoch epoch = 0;
    std::uint32_t next_index = 0;
    bool placed = false;
    bool finished = false;
  };
  struct stream_state {
    bool accepted = false;
    bool ended = false;
    std::unordered_map<std::uint32_t, sample_state> samples;
  };
  void violation(const history_event& event, std::string_view what);

  std::unordered_map<stream_id, stream_state> streams_;
  std::vector<std::string> violations_; // at most violations_max are kept
  std::uint64_t accepted_ = 0;
  std::uint64_t ended_ = 0;
  static constexpr std::size_t violations_max = 100;
};

} // namespace rankwise::core
