#pragma once

#include "app/options/duration.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <concepts>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

/// What options with a number or a time accept. A complaint names the option (CLI11 puts it in front), the value as it
/// was given, and the range in plain digits.
namespace rankwise::app {

/// For `Option::transform`: a whole number from `least` to `most`, both included, that fits the option's type.
template <std::integral Int>
[[nodiscard]] CLI::Validator whole_number(std::type_identity_t<Int> least, std::type_identity_t<Int> most) {
  const auto read = [=](std::string& text) {
    Int value{};
    const auto* const end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || last != end || value < least || value > most)
      return fmt::format("\"{}\" is not a whole number from {} to {}", text, least, most);
    text = std::to_string(value); // "010" is ten
    return std::string{};
  };
  const bool any = most == std::numeric_limits<Int>::max();
  return {read, any ? fmt::format("{} or more", least) : fmt::format("{} to {}", least, most)};
}

/// As above for options of type int; the type of wider options is named.
[[nodiscard]] inline CLI::Validator whole_number(int least, int most) {
  return whole_number<int>(least, most);
}

/// Whatever an option of this type can hold, from `least` on.
template <std::integral Int>
[[nodiscard]] CLI::Validator whole_number(std::type_identity_t<Int> least = 0) {
  return whole_number<Int>(least, std::numeric_limits<Int>::max());
}

/// For `Option::transform`: a number from `least` to `most`, both included.
[[nodiscard]] CLI::Validator number(double least, double most);

/// For `Option::transform`: any number above `bound`, without it.
[[nodiscard]] CLI::Validator number_above(double bound);

/// For `Option::transform`: any number from `least` on.
[[nodiscard]] CLI::Validator number_from(double least);

/// The longest duration of an option that says nothing else: a thousand days.
inline constexpr double duration_max_s = 86'400'000;

/// What an option that is a time accepts. `unit` is what a number alone counts, and what the option's variable is in.
struct duration_range {
  double least_s = 0;
  double most_s = duration_max_s;
  time_unit unit = time_unit::seconds;
};

/// Lets an option take durations, and makes its help say how they are written.
CLI::Option* as_duration(CLI::Option* option, duration_range range = {});

} // namespace rankwise::app
