#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace rankwise::wire::sglang {

/// Kinds of malformed input from an engine, each counted under its own metric label.
enum class wire_error_kind : std::uint8_t {
  truncated = 0,
  not_an_array = 1,
  unknown_tag = 2,
  wrong_type = 3,    ///< a column or key holds a value of another type
  column_length = 4, ///< columns of one batch differ in length
  too_large = 5,     ///< a length beyond the decoder's limits
  trailing_bytes = 6,
  missing_field = 7, ///< a layout or map lacks a field that we need; `field` names it
  bad_status = 8,    ///< handshake status that is neither HELLO nor READY
  not_msgpack = 9,   ///< a byte that no msgpack value starts with
};

inline constexpr std::uint8_t wire_error_kind_count = 10;

/// The label used in metrics and logs, e.g. "column_length".
[[nodiscard]] std::string_view to_string(wire_error_kind kind) noexcept;

struct wire_error {
  wire_error_kind kind = wire_error_kind::truncated;
  std::string field;   ///< "SamplingParams.temperature", "output_ids", ... ; empty when the whole frame is meant
  std::string value{}; ///< what stands there: "-1", "\"many\"", "nil"; empty when it is not told
};

/// For a log line: "missing_field SamplingParams.temperature", "wrong_type max_num_seqs: -1".
[[nodiscard]] std::string to_string(const wire_error& error);

template <class T>
using wire_result = tl::expected<T, wire_error>;

} // namespace rankwise::wire::sglang
