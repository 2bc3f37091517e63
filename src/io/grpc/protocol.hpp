#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// The small pieces of "gRPC over HTTP2" that are pure functions of bytes.
namespace rankwise::io::grpc {

/// Bytes before each message: one flag byte (1 = compressed) and the length as four big-endian bytes.
inline constexpr std::size_t message_prefix_bytes = 5;

/// Writes the prefix of an uncompressed message of `message_bytes` to `to[0..4]`.
void write_message_prefix(char* to, std::uint32_t message_bytes) noexcept;

/// Reads a `grpc-timeout` value: 1 to 8 digits and one unit of H, M, S, m, u, n. nullopt: malformed.
[[nodiscard]] std::optional<std::chrono::nanoseconds> parse_timeout(std::string_view value) noexcept;

/// Encodes a status message for `grpc-message`: every byte outside 0x20..0x7e, and '%', becomes %XX.
[[nodiscard]] std::string percent_encode(std::string_view text);

/// The first `bytes_max` bytes of a UTF-8 text or less, so that no character is cut in two.
[[nodiscard]] std::string_view cut_text(std::string_view text, std::size_t bytes_max) noexcept;

/// `application/grpc`, alone or followed by `+format` or `;parameters`.
[[nodiscard]] bool is_grpc_content_type(std::string_view value) noexcept;

} // namespace rankwise::io::grpc
