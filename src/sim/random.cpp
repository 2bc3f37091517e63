#include "sim/random.hpp"

#include <algorithm>
#include <numbers>

namespace rankwise::sim {

double random_source::normal(double mean, double deviation) {
  // Box and Muller; the second value is thrown away so that the source has no hidden state besides its engine.
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
  return mean + deviation * radius * std::cos(2.0 * std::numbers::pi * uniform());
}

double random_source::gamma(double shape, double scale) {
  if (shape < 1.0) {
    const double boost = std::pow(1.0 - uniform(), 1.0 / shape);
    return gamma(shape + 1.0, scale) * boost;
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) { // accepts with a probability above 0.95
    const double x = normal(0.0, 1.0);
    const double v = std::pow(1.0 + c * x, 3.0);
    if (v <= 0.0) {
      continue;
    }
    if (std::log1p(-uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v * scale;
    }
  }
}

std::size_t random_source::pick(std::span<const double> cumulative_weights) {
  const double at = uniform() * cumulative_weights.back();
  const auto found = std::upper_bound(cumulative_weights.begin(), cumulative_weights.end(), at);
  const auto index = static_cast<std::size_t>(found - cumulative_weights.begin());
  return std::min(index, cumulative_weights.size() - 1);
}

} // namespace rankwise::sim
