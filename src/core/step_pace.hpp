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

  step_pace() = default;
  explicit step_pace(const coefficients& prior);

  /// A step in which nothing was prefilled.
  void learn_decode(double step_s, double requests, double kv_tokens);
  /// Steps that took `seconds` in all, of which decoding explains `decode_s`, and prefilled `tokens`.
  void learn_prefill(double seconds, double decode_s, double tokens);

  [[nodiscard]] const coefficients& get() const noexcept { return now_; }

 private:
  void keep_weights_possible();

  static constexpr std::size_t terms = 3;
  coefficients now_;
  std::array<double, terms> weights_{29.9e-3, 0.215e-3 * 64, 0.158e-6 * 1e5}; // of 1, requests / 64, KV / 100,000
  std::array<std::array<double, terms>, terms> covariance_{{{1e-3, 0, 0}, {0, 1e-3, 0}, {0, 0, 1e-3}}};
  double prefill_tokens_ = 0; // faded sums
  double prefill_s_ = 0;
};

} // namespace rankwise::core
