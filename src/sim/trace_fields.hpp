#pragma once

#include "sim/workload.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Reading lines and fields of trace files, with errors that say where.
namespace rankwise::sim {

template <class T>
using trace_result = tl::expected<T, workload_error>;

/// The line being read, for errors.
struct trace_place {
  const std::string& file;
  std::size_t line = 0;

  [[nodiscard]] tl::unexpected<workload_error> error(std::string_view field, std::string_view value,
                                                     std::string message) const {
    constexpr std::size_t shown = 80;
    return tl::unexpected(
        workload_error{file, line, std::string(field), std::string(value.substr(0, shown)), std::move(message)});
  }
};

/// Cuts off the first line of `text`, without its end (LF or CRLF).
[[nodiscard]] std::string_view take_line(std::string_view& text) noexcept;
[[nodiscard]] std::vector<std::string_view> split_csv(std::string_view line);

/// A whole number from 1 to trace_tokens_max.
[[nodiscard]] trace_result<std::uint32_t> read_tokens(const trace_place& place, std::string_view field,
                                                      std::string_view text);
/// Seconds of a trace, 31 years; beyond some hundred times that nanoseconds overflow.
inline constexpr double trace_seconds_max = 1e9;
/// A number from 0 to `max`.
[[nodiscard]] trace_result<double> read_amount(const trace_place& place, std::string_view field, std::string_view text,
                                               double max = trace_seconds_max);

/// Errors: not readable, or larger than `bytes_max`.
[[nodiscard]] trace_result<std::string> read_file(const std::filesystem::path& path, std::uintmax_t bytes_max);

/// Sorts by arrival and makes the first one 0.
void finish_arrivals(std::vector<workload_request>& requests);

/// ServeGen, see load_workload.
[[nodiscard]] trace_result<workload> load_servegen(const std::filesystem::path& folder, std::uint64_t seed,
                                                   const workload_limits& limits);
[[nodiscard]] bool is_servegen_folder(const std::filesystem::path& path);

} // namespace rankwise::sim
