#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Durations as people write them on a command line: the one parser of every option, and part of an option, that is a
/// time.
namespace rankwise::app {

/// What a number without a unit counts.
enum class time_unit : std::uint8_t { microseconds, milliseconds, seconds };

/// How many of `unit` there are in "500ms", "8s", "1.5m" or "2h" (also "20us"); a number alone counts `unit`. None for
/// a text that is no duration, and for one below 0.
[[nodiscard]] std::optional<double> parse_duration(std::string_view text, time_unit unit = time_unit::seconds);

/// The number in `text`, all of it, and finite.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// A number without an exponent, as short as it can be: "10000000", "0.1".
[[nodiscard]] std::string plain_digits(double value);

/// A duration for people: "500ms", "8s", "10000000s".
[[nodiscard]] std::string duration_text(double seconds);

[[nodiscard]] double to_seconds(double value, time_unit unit);

/// What `parse_duration` reads, for help and complaints: "a number with us, ms, s, m or h; alone it is seconds".
[[nodiscard]] std::string duration_notation(time_unit unit = time_unit::seconds);

} // namespace rankwise::app
