#include "sim/trace_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

namespace rankwise::sim {

std::string_view take_line(std::string_view& text) noexcept {
  const auto end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  return line;
}

std::vector<std::string_view> split_csv(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) {
      return fields;
    }
    line.remove_prefix(comma + 1);
  }
}

trace_result<std::uint32_t> read_tokens(const trace_place& place, std::string_view field, std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > trace_tokens_max) {
    return place.error(field, text, "is not a whole number from 1 to " + std::to_string(trace_tokens_max));
  }
  return value;
}

trace_result<double> read_amount(const trace_place& place, std::string_view field, std::string_view text, double max) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0 && value <= max)) {
    return place.error(field, text, fmt::format("is not a number from 0 to {:.0f}", max));
  }
  return value;
}

trace_result<std::string> read_file(const std::filesystem::path& path, std::uintmax_t bytes_max) {
  const std::string name = path.string();
  const trace_place place{name};
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) {
    return place.error({}, {}, error.message());
  }
  if (size > bytes_max) {
    return place.error({}, {}, "is larger than " + std::to_string(bytes_max) + " bytes");
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(size, '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) {
    return place.error({}, {}, "cannot be read");
  }
  return text;
}

void finish_arrivals(std::vector<workload_request>& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  if (requests.empty()) {
    return;
  }
  const double first = requests.front().arrival_s;
  for (workload_request& request : requests) {
    request.arrival_s -= first;
  }
}

} // namespace rankwise::sim
