// TLS of the gRPC server with a client on OpenSSL alone, which can be told to misbehave. What runs over TLS is tried
// with grpc++ in grpcpp_tls_test.cpp.

#include "io/grpc/server.hpp"
#include "raw_client.hpp"
#include "small_server.hpp"
#include "test_certificates.hpp"

#include <gtest/gtest.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

namespace rankwise::io::grpc {
namespace {

using namespace std::chrono_literals;
using testing::certificate_files;
using testing::eventually;
using testing::test_authority;
using testing::text_of_file;

/// A blocking TLS client; every wait ends after five seconds.
class tls_client {
 public:
  struct settings {
    std::string alpn{"\x02h2", 3};            ///< As it goes over the wire; empty = none.
    const certificate_files* shown = nullptr; ///< The client's own certificate.
    int version_max = TLS1_3_VERSION;
  };

  tls_client(std::uint16_t port, const settings& how) : socket_(testing::connect_to(port)) {
    const timeval limit{5, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_security_level(context_.get(), 0); // so that it can offer what is too old
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_.get(), how.version_max);
    if (how.shown != nullptr) {
      SSL_CTX_use_certificate_chain_file(context_.get(), how.shown->certificate.c_str());
      SSL_CTX_use_PrivateKey_file(context_.get(), how.shown->key.c_str(), SSL_FILETYPE_PEM);
    }
    ssl_.reset(SSL_new(context_.get()));
    if (!how.alpn.empty()) {
      SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(how.alpn.data()),
                          static_cast<unsigned>(how.alpn.size()));
    }
    SSL_set_fd(ssl_.get(), socket_.get());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }

  /// True: the server's preface, which is a SETTINGS frame, came. TLS 1.3 tells of a refused client only here.
  [[nodiscard]] bool served() {
    if (!connected_) {
      return false;
    }
    std::array<unsigned char, 9> frame{};
    const int got = SSL_read(ssl_.get(), frame.data(), static_cast<int>(frame.size()));
    return got == 9 && frame[3] == 4;
  }
  [[nodiscard]] std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  }
  [[nodiscard]] int version() const { return SSL_version(ssl_.get()); }

 private:
  struct deleter {
    void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
    void operator()(SSL* p) const { SSL_free(p); }
  };
  unique_fd socket_;
  std::unique_ptr<SSL_CTX, deleter> context_;
  std::unique_ptr<SSL, deleter> ssl_;
  bool connected_ = false;
};

class grpc_server_tls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::signal(SIGPIPE, SIG_IGN); // OpenSSL's writes in the client
    authority_ = std::make_unique<test_authority>("authority");
    stranger_ = std::make_unique<test_authority>("stranger");
    files_ = authority_->issue("server");
    client_files_ = authority_->issue("client");
    stranger_files_ = stranger_->issue("client");
  }
  static void TearDownTestSuite() {
    authority_.reset();
    stranger_.reset();
  }

  void start(bool mutual = false, std::chrono::milliseconds handshake_max = 10s) {
    server_options options;
    options.tls = {files_.certificate, files_.key, mutual ? authority_->ca_file() : ""};
    options.tls_handshake_max = handshake_max;
    server_ = std::make_unique<server>(options);
    const auto started = server_->start();
    ASSERT_TRUE(started) << started.error();
  }

  [[nodiscard]] bool serves(const tls_client::settings& how = {}) {
    tls_client client{server_->port(), how};
    return client.served();
  }
  /// The count of failed handshakes, once it is this many or two seconds went by.
  [[nodiscard]] std::uint64_t failures(std::uint64_t wanted) {
    eventually([&] { return server_->counters().tls_handshakes_failed >= wanted; });
    return server_->counters().tls_handshakes_failed;
  }
  [[nodiscard]] std::uint64_t failures_by(tls_failure why) {
    return server_->counters().tls_failures[static_cast<std::size_t>(why)];
  }

  static inline std::unique_ptr<test_authority> authority_;
  static inline std::unique_ptr<test_authority> stranger_;
  static inline certificate_files files_;
  static inline certificate_files client_files_;
  static inline certificate_files stranger_files_;
  std::unique_ptr<server> server_;
};

TEST_F(grpc_server_tls, a_client_that_offers_h2_is_served_by_tls_1_2_and_1_3) {
  start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    tls_client::settings how;
    how.version_max = version;
    tls_client client{server_->port(), how};
    EXPECT_TRUE(client.served()) << version;
    EXPECT_EQ(client.version(), version);
    EXPECT_EQ(client.protocol(), "h2");
  }
  EXPECT_EQ(server_->counters().tls_handshakes, 2U);
  EXPECT_EQ(server_->counters().tls_handshakes_failed, 0U);
}

TEST_F(grpc_server_tls, h2_is_chosen_from_a_longer_list) {
  start();
  tls_client::settings how;
  how.alpn = std::string("\x08http/1.1\x08grpc-exp\x02h2", 21);
  EXPECT_TRUE(serves(how));
}

TEST_F(grpc_server_tls, a_client_without_h2_in_alpn_is_refused) {
  start();
  tls_client::settings none;
  none.alpn.clear();
  EXPECT_FALSE(serves(none));
  EXPECT_EQ(failures(1), 1U);
  tls_client::settings other;
  other.alpn = std::string("\x08http/1.1", 9);
  EXPECT_FALSE(serves(other));
  EXPECT_EQ(failures(2), 2U);
  EXPECT_EQ(failures_by(tls_failure::no_h2), 2U);
  EXPECT_TRUE(serves());
}

TEST_F(grpc_server_tls, a_version_before_1_2_is_refused) {
  start();
  tls_client::settings old;
  old.version_max = TLS1_1_VERSION;
  EXPECT_FALSE(serves(old));
  EXPECT_EQ(failures(1), 1U);
  EXPECT_EQ(failures_by(tls_failure::other), 1U);
}

TEST_F(grpc_server_tls, mutual_tls_serves_only_clients_of_its_authority) {
  start(true);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    tls_client::settings how;
    how.version_max = version;
    const auto before = server_->counters().tls_handshakes_failed;
    EXPECT_FALSE(serves(how)) << "no certificate";
    EXPECT_EQ(failures(before + 1), before + 1);
    how.shown = &stranger_files_;
    EXPECT_FALSE(serves(how)) << "a certificate of somebody else's authority";
    EXPECT_EQ(failures(before + 2), before + 2);
    EXPECT_EQ(failures_by(tls_failure::certificate), before + 2);
    how.shown = &client_files_;
    EXPECT_TRUE(serves(how));
  }
}

TEST_F(grpc_server_tls, bytes_that_are_no_tls_end_their_connection_alone) {
  start();
  tls_client witness{server_->port(), {}};
  const std::vector<std::string> bad{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
                                     std::string(2000, '\xff'), std::string("\x16\x03\x01\xff\xff", 5),
                                     std::string("\x16\x03\x01\x00\x05\x01\xff\xff\xff\x00", 10)};
  for (const auto& bytes : bad) {
    const auto fd = testing::connect_to(server_->port());
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(fd.get(), SHUT_WR);
    const timeval limit{5, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    std::array<char, 512> buffer{};
    ssize_t got = 1;
    while (got > 0) {
      got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    }
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << std::strerror(errno);
  }
  EXPECT_EQ(failures(bad.size()), bad.size());
  EXPECT_GE(failures_by(tls_failure::not_tls), 3U);
  EXPECT_TRUE(witness.served());
}

TEST_F(grpc_server_tls, a_handshake_that_stalls_is_ended_in_time) {
  start(false, 150ms);
  const auto began = std::chrono::steady_clock::now();
  const auto silent = testing::connect_to(server_->port());
  const auto half = testing::connect_to(server_->port());
  ::send(half.get(), "\x16\x03\x01\x02", 4, MSG_NOSIGNAL); // a record's header, cut
  EXPECT_EQ(failures(2), 2U);
  EXPECT_EQ(failures_by(tls_failure::time_limit), 2U);
  EXPECT_GE(std::chrono::steady_clock::now() - began, 149ms);
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_now == 0; })); // counted, then closed
  EXPECT_TRUE(serves());
}

TEST_F(grpc_server_tls, a_finished_handshake_without_http2_is_ended_as_a_missing_preface) {
  server_options options;
  options.tls = {files_.certificate, files_.key, ""};
  options.preface_max = 150ms;
  server_ = std::make_unique<server>(options);
  ASSERT_TRUE(server_->start());
  tls_client client{server_->port(), {}};
  EXPECT_TRUE(client.served());
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_now == 0; }));
  EXPECT_EQ(server_->counters().tls_handshakes_failed, 0U);
}

TEST_F(grpc_server_tls, more_handshakes_at_once_than_one_round_takes_all_succeed) {
  start();
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 24; ++i) {
    threads.emplace_back([&] { served.fetch_add(serves() ? 1 : 0); });
  }
  for (auto& t : threads) {
    t.join();
  }
  EXPECT_EQ(served, 24);
}

TEST_F(grpc_server_tls, files_that_do_not_fit_are_refused_by_name_at_start) {
  const auto other = authority_->issue("other");
  const auto garbage = authority_->write("garbage.pem", "no certificate\n");
  const auto locked = authority_->write("locked.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n"
                                                      "-----END ENCRYPTED PRIVATE KEY-----\n");
  struct row {
    tls_options tls;
    std::string_view option;
    std::string what;
  };
  const std::vector<row> rows{
      {{files_.certificate, "", ""}, "certificate", "key"},
      {{"", files_.key, ""}, "key", "certificate"},
      {{"", "", authority_->ca_file()}, "client_ca", "certificate"},
      {{"/nowhere/a.pem", files_.key, ""}, "certificate", "/nowhere/a.pem"},
      {{files_.certificate, "/nowhere/a.key", ""}, "key", "/nowhere/a.key"},
      {{files_.certificate, files_.key, "/nowhere/ca.pem"}, "client_ca", "/nowhere/ca.pem"},
      {{files_.certificate, "/tmp", ""}, "key", "/tmp"},
      {{garbage, files_.key, ""}, "certificate", garbage},
      {{files_.certificate, garbage, ""}, "key", garbage},
      {{files_.certificate, locked, ""}, "key", locked},
      {{files_.certificate, files_.key, garbage}, "client_ca", garbage},
      {{files_.certificate, other.key, ""}, "key", other.key},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto checked = check_tls(rows[i].tls);
    ASSERT_FALSE(checked) << "row " << i;
    EXPECT_EQ(checked.error().option, rows[i].option) << "row " << i;
    EXPECT_NE(checked.error().what.find(rows[i].what), std::string::npos) << checked.error().what;
    server_options options;
    options.tls = rows[i].tls;
    server s{options};
    EXPECT_FALSE(s.start()) << "row " << i;
  }
  EXPECT_TRUE(check_tls({}));
  EXPECT_TRUE(check_tls({files_.certificate, files_.key, authority_->ca_file()}));
}

} // namespace
} // namespace rankwise::io::grpc
