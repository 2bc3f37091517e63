#include "wire/sglang/engine_rid.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <zlib.h>

namespace rankwise::wire::sglang {

namespace {

constexpr char separator = '~';
constexpr char terminator = '!';

struct split_rid {
  std::string_view client;
  engine_rid ours;
};

std::optional<split_rid> split(std::string_view rid) noexcept {
  const auto tilde = rid.rfind(separator);
  if (tilde == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view tail = rid.substr(tilde + 1);
  if (tail.ends_with(terminator)) { // rids of releases before 0.2 end without it
    tail.remove_suffix(1);
  }
  const char* const end = tail.data() + tail.size();
  split_rid result{rid.substr(0, tilde), {}};
  const auto [dot, handle_error] = std::from_chars(tail.data(), end, result.ours.handle, 36);
  if (handle_error != std::errc{} || dot == end || *dot != '.') {
    return std::nullopt;
  }
  const auto [last, attempt_error] = std::from_chars(dot + 1, end, result.ours.attempt);
  if (attempt_error != std::errc{}) {
    return std::nullopt;
  }
  if (last == end) {
    return result;
  }
  if (*last != '.') {
    return std::nullopt;
  }
  const auto [boot_end, boot_error] = std::from_chars(last + 1, end, result.ours.boot, 36);
  if (boot_error != std::errc{} || boot_end != end) {
    return std::nullopt;
  }
  return result;
}

template <class Integer>
void append_number(std::string& text, Integer value, int base) {
  std::array<char, 24> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value, base);
  text.append(digits.data(), written.ptr);
}

} // namespace

std::string make_engine_rid(std::string_view client_rid, std::optional<std::uint32_t> sample,
                            core::request_handle handle, std::uint32_t attempt, core::node_boot boot) {
  std::string rid;
  rid.reserve(client_rid.size() + 32);
  rid.append(client_rid);
  std::replace(rid.begin(), rid.end(), separator, '-');
  if (sample) {
    rid += '-';
    append_number(rid, *sample, 10);
  }
  rid += separator;
  append_number(rid, handle, 36);
  rid += '.';
  append_number(rid, attempt, 10);
  if (boot != 0) {
    rid += '.';
    append_number(rid, boot, 36);
  }
  rid += terminator;
  return rid;
}

std::string make_engine_rid(const core::generate_request& request, std::uint32_t sample, core::request_handle handle,
                            std::uint32_t attempt, core::node_boot boot) {
  return make_engine_rid(request.rid, request.samples > 1 ? std::optional{sample} : std::nullopt, handle, attempt,
                         boot);
}

std::optional<engine_rid> parse_engine_rid(std::string_view rid) noexcept {
  const auto parts = split(rid);
  if (!parts) {
    return std::nullopt;
  }
  return parts->ours;
}

std::string_view client_part(std::string_view rid) noexcept {
  const auto parts = split(rid);
  return parts ? parts->client : rid;
}

std::int32_t expected_token(std::uint32_t rid_crc32, std::uint64_t index) noexcept {
  return static_cast<std::int32_t>((rid_crc32 + index) % 94);
}

std::uint32_t rid_crc32(std::string_view rid) noexcept {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(rid.data()), static_cast<z_size_t>(rid.size())));
}

} // namespace rankwise::wire::sglang
