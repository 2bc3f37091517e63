#pragma once

#include "core/request.hpp"
#include "core/request_intake.hpp"
#include "io/front/front_options.hpp"
#include "io/grpc/status.hpp"

#include <tl/expected.hpp>

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

/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

} // namespace rankwise::io::front
