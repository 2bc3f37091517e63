#pragma once

#include "core/base/time.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace rankwise::core {

/// How long an engine may say nothing before it is odd: learned from silences that ended by themselves. One object per
/// rank and incarnation. A silence is the time between two outputs while work is outstanding.
///
/// Prompts explain a silence by the slowest prefill seen lately, with a margin; anything else by the longest step seen
/// lately. Both look at the last `window` silences only, so an engine that changes is learned again. Short silences
/// teach nothing: they are seen at the times of a ticker, too coarse for them.
class expected_silence {
 public:
  struct options {
    duration floor = std::chrono::seconds{5}; ///< believed without any reason
    double prefill_tokens_per_s = 1000;       ///< the slowest prefill believed before one was seen
    double step_factor = 3;                   ///< of the longest step seen
    double prefill_margin = 3;                ///< the slowest prefill seen may be this much slower
  };
  static constexpr std::size_t window = 32;
  static constexpr duration shortest = std::chrono::milliseconds{500};
  /// A prefill of fewer tokens says more about steps than about tokens.
  static constexpr std::uint64_t prefill_tokens_min = 256;

  explicit expected_silence(const options& o) : options_(o) {}

  /// A silence ended, in which `prefilled_tokens` of prompts were done.
  void learn(duration silence, std::uint64_t prefilled_tokens);

  /// The silence that `prefill_tokens` of prompts to do explain.
  [[nodiscard]] duration explained(std::uint64_t prefill_tokens) const;

  [[nodiscard]] double prefill_tokens_per_s() const;
  [[nodiscard]] duration longest_step() const;

 private:
  template <class T>
  struct recent {
    std::array<T, window> values{};
    std::size_t next = 0;
    std::size_t count = 0;
    void add(T value) {
      values[next] = value;
      next = (next + 1) % window;
      count = count < window ? count + 1 : window;
    }
  };

  options options_;
  recent<duration> steps_;
  recent<double> prefills_; // tokens per second
};

} // namespace rankwise::core
