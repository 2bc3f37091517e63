#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

/// What clients ask for and when: a built-in mix, or a trace of real traffic.
namespace rankwise::sim {

struct workload_request {
  double arrival_s = 0; ///< since the start of the workload
  std::uint32_t input_tokens = 1;
  std::uint32_t output_tokens = 1;
  /// One per started block of `workload::block_tokens` prompt tokens: requests whose leading numbers are equal begin
  /// with the same tokens. Empty = shares nothing.
  std::vector<std::uint64_t> prefix_blocks;
  std::int32_t priority = 0;          ///< its class among those who wait for a rank; a higher one goes first
  std::optional<double> deadline_s{}; ///< from its arrival to its first token

  friend bool operator==(const workload_request&, const workload_request&) = default;
};

struct workload {
  std::string name;
  std::vector<workload_request> requests; ///< in order of arrival
  std::uint32_t block_tokens = 512;

  /// Arrival of the last request.
  [[nodiscard]] double span_s() const noexcept { return requests.empty() ? 0 : requests.back().arrival_s; }
};

/// Which part of a workload is played, and how fast.
struct workload_limits {
  double speed = 1; ///< arrivals come that many times faster; lengths stay
  std::size_t requests = std::numeric_limits<std::size_t>::max();
  double duration_s = std::numeric_limits<double>::infinity(); ///< after `speed`
};

/// First by speed, then cut by duration, then by number of requests.
[[nodiscard]] workload limited(workload whole, const workload_limits& limits);

// -- built in
// -----------------------------------------------------------------------------------------------------------

struct mixed_workload_options {
  std::size_t requests = 1000;
  double requests_per_s = 20; ///< Poisson arrivals
  std::uint64_t seed = 1;
  std::uint32_t input_tokens_max = 32'768;
  std::uint32_t output_tokens_max = 2048;
};

/// Lengths far apart, which is what makes placement hard: 60 % chat (about 500 tokens in, 200 out), 20 % documents
/// (8,000 in, 150 out), 15 % short calls (50 in, 20 out), 5 % reasoning (300 in, 1,200 out), each spread log-normally.
/// A third of the chats and documents begin with one of eight shared prompts. Invented, not measured.
[[nodiscard]] workload mixed_workload(const mixed_workload_options& options);

// -- traces
// -------------------------------------------------------------------------------------------------------------

/// Names the place, the field and what stood there.
struct workload_error {
  std::string file;
  std::size_t line = 0; ///< from 1; 0 = the file as a whole
  std::string field;
  std::string value;
  std::string message;
};

/// "trace.csv:17: output_tokens: \"-3\" is not a whole number from 1 to 16777216"
[[nodiscard]] std::string to_string(const workload_error& error);

inline constexpr std::uint32_t trace_tokens_max = 16'777'216; ///< of one request, each way
inline constexpr std::size_t trace_requests_max = 5'000'000;
inline constexpr std::size_t trace_line_bytes_max = 4'194'304;

/// Reads a trace, its format told by its content:
///  * Mooncake jsonl {timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens)}. The published
///  files stamp
///    several requests alike, once in about 3 s; such requests are spread by chance up to the next stamp.
///  * Azure 2023 csv TIMESTAMP,ContextTokens,GeneratedTokens.
///  * jsonl of `rankwise record`.
///  * csv arrival_s,input_tokens,output_tokens, for one's own traffic.
///  * a ServeGen folder: per client chunk-N-trace.csv (rows window start, requests per s, coefficient of variation,
///  Gamma or
///    Weibull, its shape and scale, for windows of 600 s) and chunk-N-dataset.json (length distributions every 6 h),
///    from which requests are drawn by chance for the part that `limits` asks for (at most a day; an hour when it sets
///    no limit).
/// Arrivals start at 0. `limits` is applied.
[[nodiscard]] tl::expected<workload, workload_error>
load_workload(const std::filesystem::path& path, std::uint64_t seed, const workload_limits& limits = {});

/// The loaders for text, for tests; `name` stands in errors.
[[nodiscard]] tl::expected<workload, workload_error> parse_trace(std::string_view text, const std::string& name,
                                                                 std::uint64_t seed);

} // namespace rankwise::sim
