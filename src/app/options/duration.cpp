#include "app/options/duration.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace rankwise::app {

namespace {

struct suffix {
  std::string_view text;
  double microseconds;
};
// "ms" and "us" stand before "s", which they end with too.
constexpr std::array<suffix, 5> suffixes{{{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}}};

struct unit_of_options {
  std::string_view name;
  double microseconds;
};

constexpr unit_of_options described(time_unit unit) {
  switch (unit) {
  case time_unit::microseconds:
    return {"microseconds", 1};
  case time_unit::milliseconds:
    return {"milliseconds", 1e3};
  case time_unit::seconds:
    break;
  }
  return {"seconds", 1e6};
}

} // namespace

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || read != end || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<double> parse_duration(std::string_view text, time_unit unit) {
  const auto wanted = described(unit).microseconds;
  auto given = wanted;
  for (const auto& s : suffixes) {
    if (text.ends_with(s.text)) {
      text.remove_suffix(s.text.size());
      given = s.microseconds;
      break;
    }
  }
  const auto value = parse_number(text);
  if (!value || *value < 0)
    return std::nullopt;
  // By whole numbers only, so that 500ms is the same number as 0.5s.
  const auto result = given < wanted ? *value / (wanted / given) : *value * (given / wanted);
  return std::isfinite(result) ? std::optional{result} : std::nullopt;
}

std::string plain_digits(double value) {
  std::array<char, 400> text{}; // the longest double has 309 digits before its point, or 343 behind it
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return error == std::errc{} ? std::string{text.data(), end} : std::string{"a number of more than 400 digits"};
}

double to_seconds(double value, time_unit unit) {
  return value / (described(time_unit::seconds).microseconds / described(unit).microseconds);
}

std::string duration_text(double seconds) {
  if (seconds > 0 && seconds < 1e-3)
    return plain_digits(seconds * 1e6) + "us";
  if (seconds > 0 && seconds < 1)
    return plain_digits(seconds * 1e3) + "ms";
  return plain_digits(seconds) + "s";
}

std::string duration_notation(time_unit unit) {
  return "a number with us, ms, s, m or h; alone it is " + std::string{described(unit).name};
}

} // namespace rankwise::app
