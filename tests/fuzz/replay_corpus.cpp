#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Runs a fuzz target over the files of the folders given, and over each file cut and changed in a few places, so that
/// ordinary builds and test runs replay what fuzzing has found.
int main(int argc, char** argv) {
  std::size_t files = 0;
  const auto run = [](const std::string& bytes) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  };
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      run(bytes);
      for (std::size_t at = 0; at < bytes.size() && at < 512; ++at) {
        run(bytes.substr(0, at));
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ 0x80);
        run(changed);
      }
      ++files;
    }
  }
  std::printf("%zu files\n", files);
  return files > 0 ? 0 : 1;
}
