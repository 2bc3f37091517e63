#pragma once

#include "core/base/outcome.hpp"
#include "io/grpc/status.hpp"

/// The one place that says which gRPC status a client gets for which outcome.
namespace rankwise::io::front {

/// The text is "<failure name>: <outcome's text>", so that a reason can be told from the message as well. The gateway
/// tries RESOURCE_EXHAUSTED, UNAVAILABLE and DEADLINE_EXCEEDED again and passes the others on at once, so those three
/// are used only where another attempt may help.
[[nodiscard]] grpc::status to_status(const core::outcome& o);

[[nodiscard]] grpc::status_code to_status_code(core::failure reason, std::int32_t engine_status) noexcept;

} // namespace rankwise::io::front
