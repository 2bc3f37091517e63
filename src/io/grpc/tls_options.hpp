#pragma once

#include <tl/expected.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// TLS of the gRPC server: which files it takes, and whether they fit together.
namespace rankwise::io::grpc {

/// Why a TLS handshake failed.
enum class tls_failure : std::uint8_t { certificate, no_h2, not_tls, time_limit, other };
inline constexpr std::size_t tls_failure_count = 5;
/// The label of the metric.
[[nodiscard]] std::string_view to_string(tls_failure why) noexcept;

/// PEM files, read once at start. All empty = plaintext. `certificate` and `key` belong together.
struct tls_options {
  std::string certificate; ///< The server's chain, its own certificate first.
  std::string key;         ///< Of the first certificate; not encrypted.
  std::string client_ca;   ///< Not empty = mutual TLS: a client must show a certificate that one of these signed.

  [[nodiscard]] bool wanted() const noexcept { return !certificate.empty() || !key.empty() || !client_ca.empty(); }
};

struct tls_fault {
  std::string_view option; ///< The member of tls_options that is wrong, e.g. "key".
  std::string what;        ///< Names the file and what is the matter with it.
};

/// What server::start() would refuse: a file that cannot be read or holds something else, a key without certificate,
/// a key of another certificate. Nothing wanted is no fault.
[[nodiscard]] tl::expected<void, tls_fault> check_tls(const tls_options& options);

} // namespace rankwise::io::grpc
