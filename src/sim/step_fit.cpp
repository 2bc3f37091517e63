#include "sim/step_fit.hpp"

#include "sim/trace_fields.hpp"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <limits>
#include <optional>

namespace rankwise::sim {

namespace {

constexpr std::uintmax_t steps_bytes_max = 1ULL << 30;
constexpr std::size_t constants = 4;

// -- the file
// --------------------------------------------------------------------------------------------------------------

trace_result<std::uint64_t> read_count(const trace_place& place, std::string_view field, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > step_tokens_max) {
    return place.error(field, text, "is not a whole number from 0 to " + std::to_string(step_tokens_max));
  }
  return value;
}

trace_result<measured_step> read_step(const trace_place& place, std::string_view line) {
  const auto fields = split_csv(line);
  if (fields.size() != constants) {
    return place.error({}, line, "has " + std::to_string(fields.size()) + " columns instead of 4");
  }
  const auto seconds = read_amount(place, "seconds", fields[0]);
  if (!seconds) {
    return tl::unexpected(seconds.error());
  }
  if (*seconds == 0) {
    return place.error("seconds", fields[0], "is not above 0");
  }
  measured_step step;
  step.seconds = *seconds;
  struct count {
    const char* name;
    std::uint64_t measured_step::*field;
  };
  constexpr count counts[] = {{"decoding_requests", &measured_step::decoding_requests},
                              {"kv_tokens", &measured_step::kv_tokens},
                              {"prefill_tokens", &measured_step::prefill_tokens}};
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    const auto value = read_count(place, counts[i].name, fields[i + 1]);
    if (!value) {
      return tl::unexpected(value.error());
    }
    step.*counts[i].field = *value;
  }
  return step;
}

// -- least squares
// -------------------------------------------------------------------------------------------------------

using vector4 = std::array<double, constants>;
using matrix4 = std::array<vector4, constants>;

vector4 amounts(const measured_step& s) {
  return {1, static_cast<double>(s.decoding_requests), static_cast<double>(s.kv_tokens),
          static_cast<double>(s.prefill_tokens)};
}

/// Normal equations in amounts divided by their root mean square, so that all four are of one size.
struct normal_equations {
  matrix4 a{};
  vector4 b{};
  vector4 scale{}; ///< 0: no step has any of it
};

/// `kept`: seconds of each unit that are known, and taken off; 0 otherwise.
normal_equations equations_of(std::span<const measured_step> steps, const vector4& kept) {
  normal_equations e;
  const auto count = static_cast<double>(steps.size());
  for (const auto& s : steps) {
    const auto x = amounts(s);
    for (std::size_t i = 0; i < constants; ++i) {
      e.scale[i] += x[i] * x[i] / count;
    }
  }
  for (auto& s : e.scale) {
    s = std::sqrt(s);
  }
  for (const auto& s : steps) {
    auto x = amounts(s);
    double y = s.seconds;
    for (std::size_t i = 0; i < constants; ++i) {
      y -= kept[i] * x[i];
      x[i] = e.scale[i] > 0 ? x[i] / e.scale[i] : 0;
    }
    for (std::size_t i = 0; i < constants; ++i) {
      e.b[i] += x[i] * y / count;
      for (std::size_t j = 0; j < constants; ++j) {
        e.a[i][j] += x[i] * x[j] / count;
      }
    }
  }
  return e;
}

/// Which amounts are no combination of those before them: rows of a Cholesky factor whose pivot is not lost in
/// rounding.
std::array<bool, constants> independent(const matrix4& a) {
  constexpr double pivot_min = 1e-10; // squared share of an amount that those before it do not explain
  matrix4 l{};
  std::array<bool, constants> result{};
  for (std::size_t i = 0; i < constants; ++i) {
    double pivot = a[i][i];
    for (std::size_t j = 0; j < i; ++j) {
      if (!result[j]) {
        continue;
      }
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) {
        sum -= l[i][k] * l[j][k];
      }
      l[i][j] = sum / l[j][j];
      pivot -= l[i][j] * l[i][j];
    }
    result[i] = pivot > pivot_min;
    l[i][i] = result[i] ? std::sqrt(pivot) : 0;
  }
  return result;
}

/// Of the constants in `used`, which are independent; the others are 0. Gauss without pivoting: a is positive definite.
vector4 solve(const normal_equations& e, const std::array<bool, constants>& used) {
  auto a = e.a;
  auto b = e.b;
  for (std::size_t i = 0; i < constants; ++i) {
    if (!used[i]) {
      continue;
    }
    for (std::size_t j = i + 1; j < constants; ++j) {
      if (!used[j]) {
        continue;
      }
      const double factor = a[j][i] / a[i][i];
      for (std::size_t k = i; k < constants; ++k) {
        a[j][k] -= factor * a[i][k];
      }
      b[j] -= factor * b[i];
    }
  }
  vector4 x{};
  for (std::size_t i = constants; i-- > 0;) {
    if (!used[i]) {
      continue;
    }
    double sum = b[i];
    for (std::size_t k = i + 1; k < constants; ++k) {
      sum -= used[k] ? a[i][k] * x[k] : 0;
    }
    x[i] = sum / a[i][i];
  }
  return x;
}

/// The best that has no negative constant: it is the plain best over those that it does not set to 0, so that trying
/// every choice of those finds it.
vector4 solve_non_negative(const normal_equations& e, const std::array<bool, constants>& told) {
  vector4 best{};
  double best_gain = 0; // how much smaller the mean squared error is than with all 0
  for (unsigned choice = 1; choice < 1U << constants; ++choice) {
    std::array<bool, constants> used{};
    bool possible = true;
    for (std::size_t i = 0; i < constants; ++i) {
      used[i] = (choice >> i & 1U) != 0;
      possible = possible && (told[i] || !used[i]);
    }
    if (!possible) {
      continue;
    }
    const auto x = solve(e, used);
    double gain = 0;
    for (std::size_t i = 0; i < constants; ++i) {
      possible = possible && x[i] >= 0;
      gain += x[i] * e.b[i];
    }
    if (possible && gain > best_gain) {
      best_gain = gain;
      best = x;
    }
  }
  return best;
}

} // namespace

tl::expected<std::vector<measured_step>, workload_error> parse_steps(std::string_view text, const std::string& name) {
  const std::string_view first = take_line(text);
  if (first != steps_header) {
    return trace_place{name, 1}.error({}, first, "is not the header " + std::string(steps_header));
  }
  std::vector<measured_step> steps;
  for (std::size_t number = 2; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    const trace_place place{name, number};
    if (line.empty()) {
      continue;
    }
    if (steps.size() == steps_max) {
      return place.error({}, {}, "is beyond " + std::to_string(steps_max) + " steps");
    }
    const auto step = read_step(place, line);
    if (!step) {
      return tl::unexpected(step.error());
    }
    steps.push_back(*step);
  }
  if (steps.empty()) {
    return trace_place{name}.error({}, {}, "holds no step");
  }
  return steps;
}

tl::expected<std::vector<measured_step>, workload_error> load_steps(const std::filesystem::path& path) {
  const auto text = read_file(path, steps_bytes_max);
  if (!text) {
    return tl::unexpected(text.error());
  }
  return parse_steps(*text, path.string());
}

std::string steps_csv(std::span<const measured_step> steps) {
  fmt::memory_buffer text;
  fmt::format_to(std::back_inserter(text), "{}\n", steps_header);
  for (const auto& s : steps) {
    fmt::format_to(std::back_inserter(text), "{:.9f},{},{},{}\n", s.seconds, s.decoding_requests, s.kv_tokens,
                   s.prefill_tokens);
  }
  return fmt::to_string(text);
}

step_fit fit_step_time(std::span<const measured_step> steps, const step_time_constants& defaults) {
  step_fit fit;
  fit.constants = defaults;
  fit.steps = steps.size();
  if (steps.empty()) {
    fit.sources.fill(constant_source::kept_none);
    return fit;
  }
  double* const fields[constants] = {&fit.constants.base_s, &fit.constants.per_request_s, &fit.constants.per_kv_token_s,
                                     &fit.constants.per_prefill_token_s};
  const auto first = equations_of(steps, {});
  const auto told = independent(first.a);
  vector4 kept{};
  for (std::size_t i = 0; i < constants; ++i) {
    if (!told[i]) {
      kept[i] = *fields[i];
      fit.sources[i] = first.scale[i] > 0 ? constant_source::kept_mixed : constant_source::kept_none;
    }
  }
  const auto e = equations_of(steps, kept);
  const auto x = solve_non_negative(e, told);
  for (std::size_t i = 0; i < constants; ++i) {
    if (told[i]) {
      *fields[i] = x[i] / e.scale[i];
      fit.sources[i] = x[i] > 0 ? constant_source::fitted : constant_source::zero;
    }
  }
  double squares = 0;
  double shares = 0;
  for (const auto& s : steps) {
    const double error = fit.constants.seconds(s.decoding_requests, s.kv_tokens, s.prefill_tokens) - s.seconds;
    squares += error * error;
    shares += std::abs(error) / s.seconds;
  }
  fit.error_rms_s = std::sqrt(squares / static_cast<double>(steps.size()));
  fit.error_mean_share = shares / static_cast<double>(steps.size());
  return fit;
}

} // namespace rankwise::sim
