#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

/// What clients ask for and when: drawn by chance (built_in_workloads.hpp), or a trace of real traffic.
namespace rankwise::sim {

struct workload_request {
  /// Since the start of the workload. With `after`: the earliest possible, if all before it took no time; the run
  /// makes it the end of that request plus `think_s`.
  double arrival_s = 0;
  std::uint32_t input_tokens = 1;
  std::uint32_t output_tokens = 1;
  /// One per started block of `workload::block_tokens` prompt tokens: requests whose leading numbers are equal begin
  /// with the same tokens. Empty = shares nothing.
  std::vector<std::uint64_t> prefix_blocks;
  std::int32_t priority = 0;          ///< its class among those who wait for a rank; a higher one goes first
  std::optional<double> deadline_s{}; ///< from its arrival to its first token
  /// Index of an earlier request of the workload, by the same client: this one comes `think_s` after that one has
  /// ended, in whatever way (completed, refused, lost).
  std::optional<std::uint32_t> after = std::nullopt;
  double think_s = 0;

  friend bool operator==(const workload_request&, const workload_request&) = default;
};

struct workload {
  std::string name;
  std::vector<workload_request> requests; ///< in order of `arrival_s`
  std::uint32_t block_tokens = 512;

  /// `arrival_s` of the last request.
  [[nodiscard]] double span_s() const noexcept { return requests.empty() ? 0 : requests.back().arrival_s; }
};

/// Which part of a workload is played, and how fast.
struct workload_limits {
  double speed = 1; ///< arrivals come, and clients think, that many times faster; lengths stay
  std::size_t requests = std::numeric_limits<std::size_t>::max();
  double duration_s = std::numeric_limits<double>::infinity(); ///< after `speed`
};

/// First by speed, then cut by duration (of `arrival_s`), then by number of requests. What follows a request that is
/// cut off is cut off too.
[[nodiscard]] workload limited(workload whole, const workload_limits& limits);

/// Which requests of a workload come when another one has ended.
class request_followers {
 public:
  /// Throws std::invalid_argument, which names the request, when its `after` is not an earlier one.
  explicit request_followers(const workload& load);

  /// Indices of those that follow `request`, ascending.
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t request) const noexcept {
    if (followers_.empty())
      return {};
    return std::span(followers_).subspan(begins_[request], begins_[request + 1] - begins_[request]);
  }
  /// How many requests follow another one.
  [[nodiscard]] std::size_t count() const noexcept { return followers_.size(); }

 private:
  std::vector<std::size_t> begins_; ///< by request: where its followers begin; one more for the end
  std::vector<std::uint32_t> followers_;
};

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
