#pragma once

#include "core/request/request.hpp"
#include "core/request/request_intake.hpp"
#include "io/front/front_options.hpp"
#include "io/grpc/status.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <string_view>

namespace sglang::grpc::scheduler {
class GenerateRequest;
}

/// From the wire's request to the node's, or to the status that says what is wrong with it. Pure: no clock, no state.
namespace rankwise::io::front {

class request_validation {
 public:
  explicit request_validation(const front_options& options) noexcept : options_(options) {}

  /// `node` gives dp_size, disaggregation mode and context length; figures that it does not know yet (0) check nothing.
  /// Errors are INVALID_ARGUMENT or UNIMPLEMENTED with "field: value ..." as text. The deadline is the caller's to add.
  [[nodiscard]] tl::expected<core::generate_request, grpc::status>
  check(const ::sglang::grpc::scheduler::GenerateRequest& request, const core::node_info& node) const;

 private:
  const front_options& options_;
};

/// Metadata of a Generate call: its class among those who wait for a rank.
inline constexpr std::string_view priority_key = "rankwise-priority";

/// Of the value of `priority_key`; an error is INVALID_ARGUMENT with "rankwise-priority: value ..." as text.
[[nodiscard]] tl::expected<std::int32_t, grpc::status> read_priority(std::string_view text);

/// Metadata of a Generate call: milliseconds from its arrival within which the client wants its first token.
inline constexpr std::string_view first_token_ms_key = "rankwise-first-token-ms";
inline constexpr std::int32_t first_token_ms_max = 86'400'000;

/// Of the value of `first_token_ms_key`, 1 .. first_token_ms_max; errors as above.
[[nodiscard]] tl::expected<std::int32_t, grpc::status> read_first_token_ms(std::string_view text);

/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

} // namespace rankwise::io::front
