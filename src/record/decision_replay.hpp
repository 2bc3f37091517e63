#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

/// Makes every decision of a decision log again, from its inputs, and compares.
namespace rankwise::record {

inline constexpr std::size_t decision_line_bytes_max = std::size_t{64} << 20;

/// The first decision that differs.
struct decision_difference {
  std::uint64_t line = 0; ///< from 1
  std::uint32_t controller = 0;
  std::uint64_t handle = 0;
  double at_s = 0;      ///< by the recorder's clock
  std::string recorded; ///< "rank 3, epoch 1, score 0.25"
  std::string replayed;
};

/// A part of the log of which nothing could be compared, because the lines before it are missing.
struct log_gap {
  std::uint64_t line = 0; ///< where it begins, from 1
  std::string what;       ///< "3 lines were lost: the disk was too slow", "its beginning was cut off"
  std::uint64_t lines_skipped = 0;
  /// Of each controller that it concerns, the line of the next whole start, from which on its decisions were compared;
  /// none where no such line follows.
  std::map<std::uint32_t, std::optional<std::uint64_t>> next_starts;
};

struct replay_verdict {
  std::uint64_t lines = 0;
  std::uint64_t lines_skipped = 0;                ///< of controllers that were not opened, or not since a loss
  std::uint64_t decisions = 0;                    ///< compared, and the same
  std::map<std::string, std::uint64_t> by_policy; ///< of these
  std::optional<decision_difference> difference;  ///< nothing after it was compared
  std::vector<log_gap> gaps;                      ///< in order; empty: the log is whole
  /// Where the log lacks lines for the first time: "line 17: 3 lines were lost", or "line 1: controller 0 was not
  /// opened before" where its beginning was cut off. Nothing of such a controller was compared until it was opened, by
  /// a restart of the process or of the controller alone.
  std::optional<std::string> incomplete;
};

/// Errors name line, field and value: a line that is no JSON, lacks a field, or has another version. A last line
/// without its end, and a first one without its beginning, are told as gaps.
[[nodiscard]] tl::expected<replay_verdict, std::string> replay_decisions(std::istream& log);
[[nodiscard]] tl::expected<replay_verdict, std::string> replay_decisions(const std::filesystem::path& file);

} // namespace rankwise::record
