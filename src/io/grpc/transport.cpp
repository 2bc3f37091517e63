#include "io/grpc/transport.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>

namespace rankwise::io::grpc {

std::string_view to_string(tls_failure why) noexcept {
  switch (why) {
  case tls_failure::certificate:
    return "certificate";
  case tls_failure::no_h2:
    return "no_h2";
  case tls_failure::not_tls:
    return "not_tls";
  case tls_failure::time_limit:
    return "time_limit";
  case tls_failure::other:
    break;
  }
  return "other";
}

namespace {

constexpr std::string_view h2_in_alpn{"\x02h2", 3};
// What RFC 9113 leaves of TLS 1.2; TLS 1.3 has no others.
constexpr const char* tls12_ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                    unsigned int offered_size, void*) {
  std::string_view list{reinterpret_cast<const char*>(offered), offered_size};
  while (!list.empty()) {
    const auto size = static_cast<std::size_t>(static_cast<unsigned char>(list.front()));
    if (list.substr(0, size + 1) == h2_in_alpn) {
      *out = reinterpret_cast<const unsigned char*>(list.data()) + 1;
      *out_size = static_cast<unsigned char>(size);
      return SSL_TLSEXT_ERR_OK;
    }
    list.remove_prefix(std::min(size + 1, list.size()));
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

// An encrypted key is an error, and not a question on the terminal.
int no_password(char*, int, int, void*) {
  return -1;
}

tls_failure failure_of(unsigned long code) noexcept {
  if (ERR_GET_LIB(code) != ERR_LIB_SSL) {
    return tls_failure::other;
  }
  switch (ERR_GET_REASON(code)) {
  case SSL_R_NO_APPLICATION_PROTOCOL:
    return tls_failure::no_h2;
  case SSL_R_HTTP_REQUEST:
  case SSL_R_HTTPS_PROXY_REQUEST:
  case SSL_R_WRONG_VERSION_NUMBER:
    return tls_failure::not_tls;
  case SSL_R_CERTIFICATE_VERIFY_FAILED:
  case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
  // Alerts by which the client says that it does not trust ours.
  case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
  case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    return tls_failure::certificate;
  default:
    return tls_failure::other;
  }
}

std::string last_tls_error() {
  const auto code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

bool readable(const std::string& path) {
  std::error_code ignored;
  return std::ifstream{path}.good() && !std::filesystem::is_directory(path, ignored);
}

int clamped(std::size_t size) noexcept {
  return static_cast<int>(std::min<std::size_t>(size, std::numeric_limits<int>::max()));
}

} // namespace

void tls_context::deleter::operator()(ssl_ctx_st* p) const noexcept {
  SSL_CTX_free(p);
}

tl::expected<tls_context, tls_fault> tls_context::load(const tls_options& options) {
  const auto fault = [](std::string_view option, std::string what) {
    return tl::unexpected(tls_fault{option, std::move(what)});
  };
  if (options.certificate.empty()) {
    return options.key.empty() ? fault("client_ca", "needs a certificate and a key of the server beside it")
                               : fault("key", "needs a certificate beside it");
  }
  if (options.key.empty()) {
    return fault("certificate", "needs a key beside it");
  }
  for (const auto& [option, path] :
       {std::pair{"certificate", &options.certificate}, {"key", &options.key}, {"client_ca", &options.client_ca}}) {
    if (!path->empty() && !readable(*path)) {
      return fault(option, "\"" + *path + "\" cannot be read");
    }
  }
  ERR_clear_error();
  tls_context out;
  out.context_.reset(SSL_CTX_new(TLS_server_method()));
  auto* context = out.context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(context, tls12_ciphers) != 1) {
    return fault("certificate", "OpenSSL cannot be set up: " + last_tls_error());
  }
  // No resumption: connections live long, and what is not kept cannot leak.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // One record a read: a client that sends only records without data does not hold the thread.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_alpn_select_cb(context, &choose_protocol, nullptr);
  SSL_CTX_set_default_passwd_cb(context, &no_password);
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) != 1) {
    return fault("certificate", "\"" + options.certificate + "\" holds no usable certificate: " + last_tls_error());
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    const auto why = last_tls_error();
    return fault("key", "\"" + options.key + "\" holds no usable key of this certificate: " + why);
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    return fault("key", "\"" + options.key + "\" is not the key of \"" + options.certificate + "\"");
  }
  if (!options.client_ca.empty()) {
    auto* names = SSL_load_client_CA_file(options.client_ca.c_str());
    if (names == nullptr || SSL_CTX_load_verify_locations(context, options.client_ca.c_str(), nullptr) != 1) {
      sk_X509_NAME_pop_free(names, X509_NAME_free);
      return fault("client_ca", "\"" + options.client_ca + "\" holds no usable certificate: " + last_tls_error());
    }
    SSL_CTX_set_client_CA_list(context, names);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return out;
}

tl::expected<void, tls_fault> check_tls(const tls_options& options) {
  if (!options.wanted()) {
    return {};
  }
  if (auto loaded = tls_context::load(options); !loaded) {
    return tl::unexpected(std::move(loaded.error()));
  }
  return {};
}

void transport::deleter::operator()(ssl_st* p) const noexcept {
  SSL_free(p);
}

transport::transport(unique_fd socket, const tls_context* context) : socket_(std::move(socket)) {
  if (context == nullptr) {
    return;
  }
  tls_.reset(SSL_new(context->get()));
  if (tls_ == nullptr || SSL_set_fd(tls_.get(), socket_.get()) != 1) {
    throw std::bad_alloc{};
  }
  SSL_set_accept_state(tls_.get());
}

transport::~transport() {
  if (orderly_) {
    ERR_clear_error();
    SSL_shutdown(tls_.get()); // one try
  }
}

handshake_state transport::handshake() noexcept {
  ERR_clear_error();
  const int result = SSL_do_handshake(tls_.get());
  if (result == 1) {
    const unsigned char* protocol = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(tls_.get(), &protocol, &size);
    orderly_ = true;
    if (size == 0) { // the client spoke no ALPN at all
      why_failed_ = tls_failure::no_h2;
      return handshake_state::failed;
    }
    return handshake_state::done;
  }
  switch (SSL_get_error(tls_.get(), result)) {
  case SSL_ERROR_WANT_READ:
    return handshake_state::wants_readable;
  case SSL_ERROR_WANT_WRITE:
    return handshake_state::wants_writable;
  default:
    why_failed_ = failure_of(ERR_peek_error());
    return handshake_state::failed;
  }
}

transfer transport::receive(std::uint8_t* buffer, std::size_t room) noexcept {
  if (tls_ != nullptr) {
    return receive_tls(buffer, room);
  }
  for (;;) {
    const auto got = ::recv(socket_.get(), buffer, room, 0);
    if (got > 0) {
      return {transfer_state::moved, static_cast<std::size_t>(got)};
    }
    if (got < 0 && errno == EINTR) {
      continue;
    }
    const bool nothing = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return {nothing ? transfer_state::blocked : transfer_state::ended, 0};
  }
}

transfer transport::send(std::string_view bytes) noexcept {
  if (tls_ != nullptr) {
    return send_tls(bytes);
  }
  for (;;) {
    const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      return {transfer_state::moved, static_cast<std::size_t>(sent)};
    }
    if (errno == EINTR) {
      continue;
    }
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
    return {full ? transfer_state::blocked : transfer_state::ended, 0};
  }
}

transfer transport::receive_tls(std::uint8_t* buffer, std::size_t room) noexcept {
  ERR_clear_error();
  const int got = SSL_read(tls_.get(), buffer, clamped(room));
  if (got > 0) {
    return {transfer_state::moved, static_cast<std::size_t>(got)};
  }
  const int error = SSL_get_error(tls_.get(), got);
  if (error == SSL_ERROR_WANT_READ) {
    return {transfer_state::blocked, 0};
  }
  // Without renegotiation only a change of keys makes a read wait for a write: the client asked for it and takes
  // nothing.
  orderly_ = orderly_ && error == SSL_ERROR_ZERO_RETURN;
  return {transfer_state::ended, 0};
}

transfer transport::send_tls(std::string_view bytes) noexcept {
  ERR_clear_error();
  const int sent = SSL_write(tls_.get(), bytes.data(), clamped(bytes.size()));
  if (sent > 0) {
    return {transfer_state::moved, static_cast<std::size_t>(sent)};
  }
  if (SSL_get_error(tls_.get(), sent) == SSL_ERROR_WANT_WRITE) {
    return {transfer_state::blocked, 0};
  }
  orderly_ = false;
  return {transfer_state::ended, 0};
}

} // namespace rankwise::io::grpc
