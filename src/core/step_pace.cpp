#include "core/step_pace.hpp"

#include <algorithm>
#include <cmath>

namespace rankwise::core {

namespace {

constexpr double requests_unit = 64;
constexpr double kv_unit = 1e5;
constexpr double forgetting = 0.9995; // a step in 2,000 counts for the rest
constexpr double noise_s2 = 1e-6;     // (1 ms)^2: what steps vary by themselves
constexpr double covariance_max =
    1e-2;                           // of its trace: forgetting must not let it grow without end while nothing varies
constexpr double weight_max_s = 60; // of one unit of a term: no engine takes longer, whatever was observed
constexpr double prior_tokens = 50'000; // how much prefilled is as good as the prior
constexpr double memory_tokens = 2e6;

} // namespace

step_pace::step_pace(const coefficients& prior)
    : now_(prior), weights_{prior.base_s, prior.per_request_s * requests_unit, prior.per_kv_token_s * kv_unit} {}

void step_pace::learn_decode(double step_s, double requests, double kv_tokens) {
  if (!(step_s > 0) || step_s > 60)
    return;
  const std::array<double, terms> x{1, requests / requests_unit, kv_tokens / kv_unit};
  std::array<double, terms> px{};
  double predicted = 0;
  double spread = noise_s2;
  for (std::size_t i = 0; i < terms; ++i) {
    for (std::size_t j = 0; j < terms; ++j)
      px[i] += covariance_[i][j] * x[j];
    predicted += weights_[i] * x[i];
    spread += x[i] * px[i];
  }
  // A single step that is far off (a preempted host, a garbage collection) must not turn everything over.
  const double error = std::clamp(step_s - predicted, -predicted, 2 * std::max(predicted, 1e-3));
  for (std::size_t i = 0; i < terms; ++i)
    weights_[i] += px[i] / spread * error;
  keep_weights_possible();
  // It must stay positive definite, or errors grow instead of shrinking: so no element of it is bounded by itself, but
  // nothing is forgotten while there is as much uncertainty as there may be.
  double trace = 0;
  for (std::size_t i = 0; i < terms; ++i)
    trace += covariance_[i][i];
  const double keep = trace < covariance_max ? forgetting : 1;
  for (std::size_t i = 0; i < terms; ++i)
    for (std::size_t j = i; j < terms; ++j)
      covariance_[i][j] = covariance_[j][i] = (covariance_[i][j] - px[i] * px[j] / spread) / keep;
  now_.base_s = weights_[0];
  now_.per_request_s = weights_[1] / requests_unit;
  now_.per_kv_token_s = weights_[2] / kv_unit;
}

/// No term takes negative time. One that would is set to 0 as if that had been observed, so that the others take over
/// what it explained; cutting it off alone would move the prediction away from what was seen, step by step without end.
void step_pace::keep_weights_possible() {
  for (std::size_t round = 0; round < terms; ++round) {
    const auto k = static_cast<std::size_t>(std::min_element(weights_.begin(), weights_.end()) - weights_.begin());
    if (weights_[k] >= 0 || covariance_[k][k] <= 0)
      break;
    const double factor = weights_[k] / covariance_[k][k];
    for (std::size_t i = 0; i < terms; ++i)
      weights_[i] -= factor * covariance_[i][k];
    weights_[k] = 0;
  }
  for (auto& w : weights_)
    w = std::clamp(w, 0.0, weight_max_s);
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
}

} // namespace rankwise::core
