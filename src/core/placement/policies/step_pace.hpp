#pragma once

#include <array>
#include <cstddef>

namespace rankwise::core {

/// How long a step of an engine takes, learned from the steps that it is seen to make:
/// base + per_request * requests that decode + per_kv_token * their KV tokens + per_prefill_token * prompt tokens.
/// Recursive least squares with forgetting over decode steps; prompts by the time that their steps took longer.
class step_pace {
 public:
  struct coefficients {
    double base_s = 29.9e-3; ///< the defaults are sim::step_time_constants', a fit of published H100 figures
    double per_request_s = 0.215e-3;
    double per_kv_token_s = 0.158e-6;
    double per_prefill_token_s = 0.105e-3;

    [[nodiscard]] double decode_s(double requests, double kv_tokens) const noexcept {
      return base_s + per_request_s * requests + per_kv_token_s * kv_tokens;
    }
  };

  step_pace() : step_pace(coefficients{}) {}
  explicit step_pace(const coefficients& prior);

  /// A step in which streams decoded, whether or not something was prefilled too.
  void learn_step(double step_s, double requests, double kv_tokens, double prompt_tokens);
  /// Steps of which little but this is known: they took `seconds` in all, of which decoding explains `decode_s`, and
  /// prefilled `tokens`.
  void learn_prefill(double seconds, double decode_s, double tokens);

  [[nodiscard]] const coefficients& get() const noexcept { return now_; }

 private:
  void keep_factors_possible();

  static constexpr std::size_t terms = 4;
  coefficients now_;
  std::array<double, terms> prior_;   // of 1, requests, KV tokens, prompt tokens
  std::array<double, terms> factors_; // of these: what is learned
  std::array<std::array<double, terms>, terms> covariance_{};
  double prefill_tokens_ = 0; // faded sums
  double prefill_s_ = 0;
};

} // namespace rankwise::core
