#pragma once

#include "sim/step_time.hpp"
#include "sim/workload.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

/// The constants of step_time_constants, from steps of an engine.
namespace rankwise::sim {

/// First line of a file of steps.
inline constexpr std::string_view steps_header = "seconds,decoding_requests,kv_tokens,prefill_tokens";
inline constexpr std::size_t steps_max = 5'000'000;          ///< of one file
inline constexpr std::uint64_t step_tokens_max = 1ULL << 40; ///< of one step, each field

/// Errors name file, line, field and value. `name` stands in them.
[[nodiscard]] tl::expected<std::vector<measured_step>, workload_error> parse_steps(std::string_view text,
                                                                                   const std::string& name);
[[nodiscard]] tl::expected<std::vector<measured_step>, workload_error> load_steps(const std::filesystem::path& path);
/// What parse_steps reads.
[[nodiscard]] std::string steps_csv(std::span<const measured_step> steps);

enum class constant_source : std::uint8_t {
  fitted,
  zero,       ///< the best fit would be negative: 0, and the others are the best with that
  kept_none,  ///< no step has any of it: the default is kept
  kept_mixed, ///< it always comes with the constants before it in a fixed proportion: the default is kept
};

struct step_fit {
  step_time_constants constants;
  std::array<constant_source, 4> sources{}; ///< of base, request, KV token, prefill token
  std::size_t steps = 0;
  double error_rms_s = 0;
  double error_mean_share = 0; ///< mean of |predicted - measured| / measured
};

/// Non-negative least squares in seconds, each step alike. What the steps cannot tell keeps its value from `defaults`,
/// and the others are fitted to what that leaves. Without steps: all kept.
[[nodiscard]] step_fit fit_step_time(std::span<const measured_step> steps, const step_time_constants& defaults = {});

} // namespace rankwise::sim
