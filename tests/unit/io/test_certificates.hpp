#pragma once

#include <filesystem>
#include <string>

/// Certificates made at test time, so that none of them ever expires in the repository.
namespace rankwise::testing {

/// PEM files of one certificate and its key.
struct certificate_files {
  std::string certificate;
  std::string key;
};

/// A certificate authority and what it signs, in a folder of its own that goes with it. Valid for an hour.
class test_authority {
 public:
  explicit test_authority(const std::string& name);
  test_authority(const test_authority&) = delete;
  test_authority& operator=(const test_authority&) = delete;
  ~test_authority();

  [[nodiscard]] const std::string& ca_file() const noexcept { return ca_.certificate; }
  /// For servers: the name "localhost" and the address 127.0.0.1 stand in it.
  [[nodiscard]] certificate_files issue(const std::string& name) const;
  /// A file in the folder with this text.
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path folder_;
  certificate_files ca_;
};

[[nodiscard]] std::string text_of_file(const std::string& path);

} // namespace rankwise::testing
