#pragma once

#include "core/base/ids.hpp"
#include "core/request/request.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// The rid that an engine sees. It is ours to choose: the client's rid, so that engine logs can be searched for it,
/// then
/// `~`, the handle in base 36, `.` and the attempt, for a node with a state file `.` and its boot in base 36, and `!`.
/// A `~` in the client's rid is written as `-`. So no engine rid is the beginning of another one, and an engine that
/// matches aborts by prefix ends the right request; a request that was moved to another rank never meets its own ghost;
/// and an output is matched to its request and owner without hashing a string.
namespace rankwise::wire::sglang {

struct engine_rid {
  core::request_handle handle = 0;
  std::uint32_t attempt = 0; ///< 0 for the first placement, then 1, 2 ...
  core::node_boot boot = 0;  ///< of the node that placed it
};

/// `sample` is appended as "-<sample>" to the client's rid when the request has several samples, as other front ends
/// do.
[[nodiscard]] std::string make_engine_rid(std::string_view client_rid, std::optional<std::uint32_t> sample,
                                          core::request_handle handle, std::uint32_t attempt, core::node_boot boot = 0);

/// The rid of one sample of a request.
[[nodiscard]] std::string make_engine_rid(const core::generate_request& request, std::uint32_t sample,
                                          core::request_handle handle, std::uint32_t attempt, core::node_boot boot);

/// nullopt: not one of ours.
[[nodiscard]] std::optional<engine_rid> parse_engine_rid(std::string_view rid) noexcept;

/// The part before the last `~` of a rid of ours; any other rid whole. Token values of simulated engines hang on it.
[[nodiscard]] std::string_view client_part(std::string_view rid) noexcept;

/// Token `index` (0-based) that a simulated engine gives for `rid`: (crc32(client_part(rid)) + index) mod 94, the rule
/// of the Python harness, so that any client can check any token. crc32 is zlib's.
[[nodiscard]] std::int32_t expected_token(std::uint32_t rid_crc32, std::uint64_t index) noexcept;
[[nodiscard]] std::uint32_t rid_crc32(std::string_view rid) noexcept;

} // namespace rankwise::wire::sglang
