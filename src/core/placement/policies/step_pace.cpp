#include "core/placement/policies/step_pace.hpp"

#include <algorithm>
#include <cmath>

namespace rankwise::core {

namespace {

constexpr double forgetting = 0.999; // of what is known of a kind of steps, with each of them
constexpr double noise_s2 = 1e-6;    // (1 ms)^2: what steps vary by themselves ...
constexpr double noise_share = 0.03; // ... and by what is not known of their batches
// Of the factors by which an engine differs from the prior: the one that all terms of decoding have in common, and each
// term's own. Another engine decodes rather faster or slower in all than in one alone.
constexpr double speed_variance = 1;
constexpr double term_variance = 0.03;
constexpr double factor_min = 0.01;     // 0 would be for ever where it is learned by its own multiples
constexpr double factor_max = 2'000;    // no engine is that much slower, whatever was observed
constexpr double prior_tokens = 50'000; // how much prefilled is as good as the prior
constexpr double memory_tokens = 2e6;

} // namespace

step_pace::step_pace(const coefficients& prior)
    : now_(prior), prior_{prior.base_s, prior.per_request_s, prior.per_kv_token_s, prior.per_prefill_token_s} {
  constexpr std::size_t prompt_term = terms - 1;
  for (std::size_t i = 0; i < prompt_term; ++i)
    for (std::size_t j = 0; j < prompt_term; ++j)
      covariance_[i][j] = speed_variance + (i == j ? term_variance : 0);
  covariance_[prompt_term][prompt_term] = speed_variance; // how it prefills is another matter
  factors_.fill(1);
}

void step_pace::learn_step(double step_s, double requests, double kv_tokens, double prompt_tokens) {
  if (!(step_s > 0) || step_s > 60)
    return;
  const std::array<double, terms> x{prior_[0], prior_[1] * requests, prior_[2] * kv_tokens, prior_[3] * prompt_tokens};
  std::array<double, terms> px{};
  double predicted = 0;
  double variance = 0; // of the prediction
  for (std::size_t i = 0; i < terms; ++i) {
    for (std::size_t j = 0; j < terms; ++j)
      px[i] += covariance_[i][j] * x[j];
    predicted += factors_[i] * x[i];
    variance += x[i] * px[i];
  }
  // A single step that is far off (a preempted host, a garbage collection) must not turn everything over.
  const double error = std::clamp(step_s - predicted, -predicted, 2 * std::max(predicted, 1e-3));
  const double about = noise_share * std::max(step_s, predicted);
  const double noise = noise_s2 + about * about;
  const double spread = variance + noise;
  for (std::size_t i = 0; i < terms; ++i)
    factors_[i] += px[i] / spread * error;
  keep_factors_possible();
  // Forgets only in the direction of what was seen: what did not vary stays as sure, or as open, as it was, however
  // long that lasts; forgetting it would let errors grow without end.
  const double learned = (1 - (1 / forgetting - 1) * noise / std::max(variance, 1e-15)) / spread;
  for (std::size_t i = 0; i < terms; ++i)
    for (std::size_t j = i; j < terms; ++j)
      covariance_[i][j] = covariance_[j][i] = covariance_[i][j] - px[i] * px[j] * learned;
  now_.base_s = prior_[0] * factors_[0];
  now_.per_request_s = prior_[1] * factors_[1];
  now_.per_kv_token_s = prior_[2] * factors_[2];
  now_.per_prefill_token_s = prior_[3] * factors_[3];
  prefill_s_ = prefill_tokens_ * now_.per_prefill_token_s;
}

/// No term takes negative time. One that would is set to 0 as if that had been observed, so that the others take over
/// what it explained; cutting it off alone would move the prediction away from what was seen, step by step without end.
void step_pace::keep_factors_possible() {
  for (std::size_t round = 0; round < terms; ++round) {
    const auto k = static_cast<std::size_t>(std::min_element(factors_.begin(), factors_.end()) - factors_.begin());
    if (factors_[k] >= 0 || covariance_[k][k] <= 0)
      break;
    const double correction = factors_[k] / covariance_[k][k];
    for (std::size_t i = 0; i < terms; ++i)
      factors_[i] -= correction * covariance_[i][k];
    factors_[k] = 0;
  }
  for (auto& factor : factors_)
    factor = std::clamp(factor, factor_min, factor_max);
}

void step_pace::learn_prefill(double seconds, double decode_s, double tokens) {
  if (!(tokens >= 1) || !(seconds > 0))
    return;
  if (prefill_tokens_ == 0) {
    prefill_tokens_ = prior_tokens;
    prefill_s_ = prior_tokens * now_.per_prefill_token_s;
  }
  const double keep = std::exp(-tokens / memory_tokens);
  prefill_tokens_ = keep * prefill_tokens_ + tokens;
  // Nor may one stall, of the engine or of whoever watches it, decide for hours.
  const double longest = 3 * tokens * now_.per_prefill_token_s;
  prefill_s_ = keep * prefill_s_ + std::min(std::max(seconds - decode_s, 0.05 * seconds), longest);
  now_.per_prefill_token_s = prefill_s_ / prefill_tokens_;
  factors_.back() = now_.per_prefill_token_s / prior_.back();
}

} // namespace rankwise::core
