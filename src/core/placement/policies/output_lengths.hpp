#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace rankwise::core {

/// How many tokens requests generate, learned from those that ended, by the size of their prompts (powers of two).
class output_lengths {
 public:
  void learn(std::uint64_t prompt_tokens, std::uint64_t generated) {
    add(all_, static_cast<double>(generated));
    add(classes_[class_of(prompt_tokens)], static_cast<double>(generated));
  }
  /// Tokens; `cap` is what was asked for at most, 0 = unknown.
  [[nodiscard]] double expected(std::uint64_t prompt_tokens, std::uint64_t cap) const {
    const auto& c = classes_[class_of(prompt_tokens)];
    // A class counts by what was seen of it beside the whole; before anything was seen, a guess.
    constexpr double enough = 20;
    const double whole = all_.weight > 0 ? all_.mean : 256;
    double result = (c.mean * c.weight + whole * enough) / (c.weight + enough);
    if (cap > 0)
      result = std::min(result, static_cast<double>(cap));
    return std::max(result, 1.0);
  }

 private:
  struct figure {
    double mean = 0;
    double weight = 0;
  };
  static void add(figure& f, double value) {
    constexpr double memory = 1000; // requests
    f.weight = std::min(f.weight + 1, memory);
    f.mean += (value - f.mean) / f.weight;
  }
  [[nodiscard]] static std::size_t class_of(std::uint64_t prompt_tokens) {
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(prompt_tokens)), 23);
  }

  figure all_;
  std::array<figure, 24> classes_{};
};

} // namespace rankwise::core
