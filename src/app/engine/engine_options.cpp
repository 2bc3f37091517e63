#include "app/engine/engine_options.hpp"
#include "app/options/duration.hpp"

#include <charconv>
#include <system_error>

namespace rankwise::app {

namespace {

std::optional<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value == 0) {
    return std::nullopt;
  }
  return value;
}

} // namespace

tl::expected<void, std::string> add_fault(engine_faults& faults, std::string_view text) {
  const auto equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? std::string_view{} : text.substr(equals + 1);
  const auto bad_value = [&](std::string_view wanted) {
    return tl::unexpected("fault " + std::string(name) + " wants " + std::string(wanted) + ", got \"" +
                          std::string(value) + "\"");
  };
  if (name == "crash-after" || name == "freeze-after") {
    const auto count = parse_count(value);
    if (!count) {
      return bad_value("a whole number of requests from 1 to 18446744073709551615");
    }
    (name == "crash-after" ? faults.crash_after_requests : faults.model.freeze_after_requests) = *count;
    return {};
  }
  if (name == "slow") {
    const auto factor = parse_number(value);
    if (!factor || *factor <= 0) {
      return bad_value("a factor, a number above 0");
    }
    faults.model.slow_factor = *factor;
    return {};
  }
  if (name == "odd-layout") {
    if (value != "missing" && value != "inserted" && !value.empty()) {
      return bad_value("missing or inserted");
    }
    faults.layout = value == "inserted" ? odd_layout::inserted : odd_layout::missing;
    return {};
  }
  if (!value.empty()) {
    return bad_value("no value");
  }
  if (name == "crash-at-start") {
    faults.crash_at_start = true;
  } else if (name == "no-load") {
    faults.load = load_fault::absent;
  } else if (name == "garbage-load") {
    faults.load = load_fault::garbage;
  } else if (name == "fail-all") {
    faults.model.fail_all = true;
  } else {
    return tl::unexpected("unknown fault \"" + std::string(text) + "\"");
  }
  return {};
}

} // namespace rankwise::app
