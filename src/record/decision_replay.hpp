#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <tl/expected.hpp>

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

struct replay_verdict {
  std::uint64_t lines = 0;
  std::uint64_t lines_skipped = 0;                ///< of controllers that were not opened, or not since a loss
  std::uint64_t decisions = 0;                    ///< compared, and the same
  std::map<std::string, std::uint64_t> by_policy; ///< of these
  std::optional<decision_difference> difference;  ///< nothing after it was compared
  /// Where the log lacks lines for the first time: "line 17: 3 lines were lost", or "line 1: controller 0 was not
  /// opened before" where its beginning was cut off. Nothing of such a controller was compared until it was opened, by
  /// a restart.
  std::optional<std::string> incomplete;
};

/// Errors name line, field and value: a line that is no JSON, lacks a field, or has another version. A last line
/// without its end is told as `incomplete`.
[[nodiscard]] tl::expected<replay_verdict, std::string> replay_decisions(std::istream& log);
[[nodiscard]] tl::expected<replay_verdict, std::string> replay_decisions(const std::filesystem::path& file);

} // namespace rankwise::record
