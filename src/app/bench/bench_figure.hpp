#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace rankwise::app {

/// One measured figure beside its reference, with the target that it has to meet.
struct figure {
  /// What the target is about: nothing, the ratio to the reference (at most, or at least), or the value (at most).
  enum class bound : std::uint8_t { none, ratio, value, ratio_min };

  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> reference; ///< The same figure of what it is compared with, in the same unit.
  bound on = bound::none;
  double limit = 0; ///< Of the target.

  /// The value over the reference; nullopt when there is none above 0.
  [[nodiscard]] std::optional<double> ratio() const;
  /// Whether the target is met; true without one.
  [[nodiscard]] bool holds() const;
  /// "ratio <= 0.4"; empty without one.
  [[nodiscard]] std::string target() const;
};

/// An array of {name, value, unit, reference, ratio, target, holds}.
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<figure>& figures);

/// Prints a table of the figures.
void print(const std::vector<figure>& figures);

/// The median; 0 of no values.
[[nodiscard]] double median(std::vector<double> values);

} // namespace rankwise::app
