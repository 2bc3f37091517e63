#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace rankwise::app {

/// A new folder under the system's temporary one, removed with all that is in it at the end of this object.
class scratch_folder {
 public:
  /// Its name begins with `prefix`. Throws std::runtime_error when it cannot be made.
  explicit scratch_folder(const std::string& prefix)
      : path_((std::filesystem::temp_directory_path() / (prefix + "XXXXXX")).string()) {
    if (::mkdtemp(path_.data()) == nullptr)
      throw std::runtime_error("cannot make a folder like " + path_);
  }
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

} // namespace rankwise::app
