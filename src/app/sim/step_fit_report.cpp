#include "app/sim/step_fit_report.hpp"

#include "app/sim/sim_setup.hpp"
#include "sim/step_fit.hpp"

#include <fmt/format.h>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace rankwise::app {

namespace {

std::string_view explain(sim::constant_source source) {
  switch (source) {
  case sim::constant_source::fitted:
    return "";
  case sim::constant_source::zero:
    return "would be negative: 0 instead, and the others fitted with that";
  case sim::constant_source::kept_none:
    return "cannot be told, no step has any: kept as it was";
  case sim::constant_source::kept_mixed:
    return "cannot be told apart from those above, with which it always comes in proportion: kept as it was";
  }
  return "";
}

} // namespace

void fit_steps(sim_options& o) {
  const auto steps = sim::load_steps(o.fit);
  if (!steps)
    throw std::runtime_error("--fit: " + to_string(steps.error()));
  const auto fit = sim::fit_step_time(*steps, step_time_of(o));
  constexpr double never_slower = 1e12; // tokens a second where they cost nothing
  const auto& c = fit.constants;
  o.step_base_ms = c.base_s * 1e3;
  o.step_per_request_ms = c.per_request_s * 1e3;
  o.step_per_kv_token_us = c.per_kv_token_s * 1e6;
  o.prefill_tokens_per_s = c.per_prefill_token_s > 0 ? 1 / c.per_prefill_token_s : never_slower;
  fmt::print("{}: {} steps; error RMS {:.3f} ms, mean {:.2f} % of a step\n", o.fit, fit.steps, fit.error_rms_s * 1e3,
             fit.error_mean_share * 100);
  struct line {
    const char* option;
    double value;
  };
  const line lines[] = {{"--step-base-ms", o.step_base_ms},
                        {"--step-per-request-ms", o.step_per_request_ms},
                        {"--step-per-kv-token-us", o.step_per_kv_token_us},
                        {"--prefill-tokens-per-s", o.prefill_tokens_per_s}};
  for (std::size_t i = 0; i < std::size(lines); ++i)
    fmt::print("  {} {:.6g}{}{}\n", lines[i].option, lines[i].value,
               fit.sources[i] == sim::constant_source::fitted ? "" : "   ", explain(fit.sources[i]));
  fmt::print("\n");
}

} // namespace rankwise::app
