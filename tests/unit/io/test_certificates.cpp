#include "test_certificates.hpp"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace rankwise::testing {

namespace {

using key_ptr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using certificate_ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using file_ptr = std::unique_ptr<FILE, int (*)(FILE*)>;

file_ptr opened(const std::string& path, const char* mode) {
  file_ptr file{std::fopen(path.c_str(), mode), &std::fclose};
  if (file == nullptr) {
    throw std::runtime_error("cannot open " + path);
  }
  return file;
}

void extend(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension{
      X509V3_EXT_conf_nid(nullptr, &context, nid, value), &X509_EXTENSION_free};
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    throw std::runtime_error("a certificate's extension was not taken");
  }
}

/// `issuer` = nullptr: signs itself, as a certificate authority.
certificate_files make(const std::filesystem::path& folder, const std::string& name, const certificate_files* issuer) {
  static long serial = 1;
  const key_ptr key{EVP_EC_gen("P-256"), &EVP_PKEY_free};
  const certificate_ptr certificate{X509_new(), &X509_free};
  certificate_ptr signer{nullptr, &X509_free};
  key_ptr signer_key{nullptr, &EVP_PKEY_free};
  if (issuer != nullptr) {
    signer.reset(PEM_read_X509(opened(issuer->certificate, "r").get(), nullptr, nullptr, nullptr));
    signer_key.reset(PEM_read_PrivateKey(opened(issuer->key, "r").get(), nullptr, nullptr, nullptr));
  }
  auto* by = issuer == nullptr ? certificate.get() : signer.get();
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(by));
  if (issuer == nullptr) {
    extend(certificate.get(), by, NID_basic_constraints, "critical,CA:TRUE");
    extend(certificate.get(), by, NID_subject_key_identifier, "hash");
  } else {
    extend(certificate.get(), by, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  }
  if (X509_sign(certificate.get(), issuer == nullptr ? key.get() : signer_key.get(), EVP_sha256()) == 0) {
    throw std::runtime_error("signing failed");
  }
  certificate_files out{(folder / (name + ".pem")).string(), (folder / (name + ".key")).string()};
  PEM_write_X509(opened(out.certificate, "w").get(), certificate.get());
  PEM_write_PrivateKey(opened(out.key, "w").get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return out;
}

} // namespace

test_authority::test_authority(const std::string& name) {
  std::string pattern = (std::filesystem::temp_directory_path() / "rankwise-test-ca-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("no folder for certificates");
  }
  folder_ = pattern;
  ca_ = make(folder_, name, nullptr);
}

test_authority::~test_authority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

certificate_files test_authority::issue(const std::string& name) const {
  return make(folder_, name, &ca_);
}

std::string test_authority::write(const std::string& name, const std::string& text) const {
  const auto path = (folder_ / name).string();
  std::ofstream{path, std::ios::binary} << text;
  return path;
}

std::string text_of_file(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream{path, std::ios::binary}.rdbuf();
  return out.str();
}

} // namespace rankwise::testing
