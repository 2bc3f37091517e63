#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <span>

/// Numbers by chance that are the same on every machine: the standard's engines are portable, its distributions are
/// not, so the distributions are our own.
namespace rankwise::sim {

class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}

  [[nodiscard]] std::uint64_t bits() { return engine_(); }
  /// [0, 1), 53 bits.
  [[nodiscard]] double uniform() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  [[nodiscard]] double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// 0 .. bound-1; bound > 0. The bias of the modulo is below 2^-32 for bounds below 2^32.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }

  [[nodiscard]] double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  [[nodiscard]] double normal(double mean, double deviation);
  /// `median` is exp(mu), `sigma` the deviation of the logarithm.
  [[nodiscard]] double lognormal(double median, double sigma) { return median * std::exp(normal(0, sigma)); }
  /// shape > 0, scale > 0; mean shape * scale. Marsaglia and Tsang, 2000.
  [[nodiscard]] double gamma(double shape, double scale);
  [[nodiscard]] double weibull(double shape, double scale) {
    return scale * std::pow(-std::log1p(-uniform()), 1.0 / shape);
  }
  /// Index into weights that have been summed up from left to right; the last one is the total, > 0.
  [[nodiscard]] std::size_t pick(std::span<const double> cumulative_weights);

 private:
  std::mt19937_64 engine_;
};

} // namespace rankwise::sim
