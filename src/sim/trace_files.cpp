#include "core/request/request.hpp"
#include "sim/random.hpp"
#include "sim/trace_fields.hpp"
#include "sim/workload.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

namespace rankwise::sim {

namespace {

constexpr std::uintmax_t trace_bytes_max = 1ULL << 30;
constexpr std::string_view azure_header = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view plain_header = "arrival_s,input_tokens,output_tokens";
constexpr std::size_t hash_ids_max = 65'536;

using read_line = trace_result<workload_request> (*)(const trace_place&, std::string_view);

// -- Azure
// --------------------------------------------------------------------------------------------------------------

/// Seconds since 1970 of "2023-11-16 18:17:03.9799600", any number of decimals.
trace_result<double> read_timestamp(const trace_place& place, std::string_view text) {
  const auto bad = [&] { return place.error("TIMESTAMP", text, "is not a time like 2023-11-16 18:17:03.9799600"); };
  constexpr std::string_view form = "dddd-dd-dd dd:dd:dd";
  if (text.size() < form.size()) {
    return bad();
  }
  for (std::size_t i = 0; i < form.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (form[i] == 'd' ? !is_digit : text[i] != form[i]) {
      return bad();
    }
  }
  const auto part = [&](std::size_t at, std::size_t size) {
    int value = 0;
    std::from_chars(text.data() + at, text.data() + at + size, value);
    return value;
  };
  const std::chrono::year_month_day day{std::chrono::year(part(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(part(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(part(8, 2)))};
  const int hour = part(11, 2);
  const int minute = part(14, 2);
  if (!day.ok() || hour > 23 || minute > 59) {
    return bad();
  }
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data() + 17, text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() || seconds >= 61) {
    return bad();
  }
  const auto days = std::chrono::sys_days(day).time_since_epoch().count();
  return static_cast<double>(days) * 86'400.0 + hour * 3600 + minute * 60 + seconds;
}

trace_result<workload_request>
read_columns(const trace_place& place, std::string_view line, std::string_view input_name, std::string_view output_name,
             trace_result<double> (*read_arrival)(const trace_place&, std::string_view)) {
  const auto fields = split_csv(line);
  if (fields.size() != 3) {
    return place.error({}, line, "has " + std::to_string(fields.size()) + " columns instead of 3");
  }
  const auto arrival = read_arrival(place, fields[0]);
  if (!arrival) {
    return tl::unexpected(arrival.error());
  }
  const auto input = read_tokens(place, input_name, fields[1]);
  if (!input) {
    return tl::unexpected(input.error());
  }
  const auto output = read_tokens(place, output_name, fields[2]);
  if (!output) {
    return tl::unexpected(output.error());
  }
  return workload_request{*arrival, *input, *output, {}};
}

trace_result<workload_request> read_azure(const trace_place& place, std::string_view line) {
  return read_columns(place, line, "ContextTokens", "GeneratedTokens", &read_timestamp);
}

trace_result<workload_request> read_plain(const trace_place& place, std::string_view line) {
  return read_columns(place, line, "input_tokens", "output_tokens",
                      [](const trace_place& p, std::string_view text) { return read_amount(p, "arrival_s", text); });
}

// -- Mooncake
// -----------------------------------------------------------------------------------------------------------

trace_result<std::uint32_t> read_json_tokens(const trace_place& place, const nlohmann::json& line, const char* field) {
  const auto found = line.find(field);
  if (found == line.end()) {
    return place.error(field, {}, "is missing");
  }
  return read_tokens(place, field, found->dump());
}

/// None where the field is missing.
trace_result<std::vector<std::uint64_t>> read_blocks(const trace_place& place, const nlohmann::json& line,
                                                     const char* field) {
  std::vector<std::uint64_t> result;
  const auto blocks = line.find(field);
  if (blocks == line.end()) {
    return result;
  }
  if (!blocks->is_array() || blocks->size() > hash_ids_max) {
    return place.error(field, blocks->dump(),
                       "is not an array of at most " + std::to_string(hash_ids_max) + " numbers");
  }
  for (const auto& block : *blocks) {
    if (!block.is_number_unsigned()) {
      return place.error(field, block.dump(), "is not a whole number from 0");
    }
    result.push_back(block.get<std::uint64_t>());
  }
  return result;
}

/// A line of `rankwise record`.
trace_result<workload_request> read_recorded(const trace_place& place, std::string_view text) {
  const auto line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object()) {
    return place.error({}, text, "is not a JSON object");
  }
  const auto arrival = line.find("arrival_s");
  if (arrival == line.end() || !arrival->is_number() || !(std::abs(arrival->get<double>()) <= trace_seconds_max)) {
    return place.error("arrival_s", arrival == line.end() ? "" : arrival->dump(),
                       "is not a number of seconds, at most 1e9");
  }
  const auto input = read_json_tokens(place, line, "input_tokens");
  if (!input) {
    return tl::unexpected(input.error());
  }
  workload_request request{arrival->get<double>(), *input, 1, {}};
  // One that ended before its engine ended it has none.
  if (const auto output = line.find("output_tokens"); output != line.end() && !output->is_null()) {
    const auto tokens = read_json_tokens(place, line, "output_tokens");
    if (!tokens) {
      return tl::unexpected(tokens.error());
    }
    request.output_tokens = *tokens;
  }
  if (const auto priority = line.find("priority"); priority != line.end()) {
    const auto value = priority->is_number_integer() ? priority->get<std::int64_t>() : core::priority_max + 1;
    if (value < core::priority_min || value > core::priority_max) {
      return place.error("priority", priority->dump(),
                         "is not a whole number from " + std::to_string(core::priority_min) + " to " +
                             std::to_string(core::priority_max));
    }
    request.priority = static_cast<std::int32_t>(value);
  }
  if (const auto within = line.find("first_token_within_s"); within != line.end()) {
    const auto seconds = read_amount(place, "first_token_within_s", within->dump());
    if (!seconds) {
      return tl::unexpected(seconds.error());
    }
    request.deadline_s = *seconds;
  }
  auto blocks = read_blocks(place, line, "blocks");
  if (!blocks) {
    return tl::unexpected(blocks.error());
  }
  request.prefix_blocks = std::move(*blocks);
  return request;
}

trace_result<std::uint32_t> read_recorded_head(const trace_place& place, std::string_view text) {
  const auto head = nlohmann::json::parse(text, nullptr, false);
  if (!head.is_object() || !head.contains("rankwise_requests") || head["rankwise_requests"] != 1) {
    return place.error("rankwise_requests", text, "is not version 1, the one that is read here");
  }
  const auto block = head.find("block_tokens");
  if (block == head.end() || !block->is_number_unsigned() || block->get<std::uint64_t>() > trace_tokens_max) {
    return place.error("block_tokens", block == head.end() ? "" : block->dump(), "is not a number of tokens");
  }
  return block->get<std::uint32_t>();
}

trace_result<workload_request> read_mooncake(const trace_place& place, std::string_view text) {
  const auto line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object()) {
    return place.error({}, text, "is not a JSON object");
  }
  const auto timestamp = line.find("timestamp");
  if (timestamp == line.end()) {
    return place.error("timestamp", {}, "is missing");
  }
  const auto milliseconds = read_amount(place, "timestamp", timestamp->dump(), 1e3 * trace_seconds_max);
  if (!milliseconds) {
    return tl::unexpected(milliseconds.error());
  }
  const auto input = read_json_tokens(place, line, "input_length");
  if (!input) {
    return tl::unexpected(input.error());
  }
  const auto output = read_json_tokens(place, line, "output_length");
  if (!output) {
    return tl::unexpected(output.error());
  }
  workload_request request{*milliseconds / 1000, *input, *output, {}};
  auto blocks = read_blocks(place, line, "hash_ids");
  if (!blocks) {
    return tl::unexpected(blocks.error());
  }
  request.prefix_blocks = std::move(*blocks);
  return request;
}

/// Requests that carry the same time are spread by chance up to the next time in the file, when that is how the file
/// was made (most requests share theirs). Played as they stand they would come in bursts that were never there.
void spread_equal_arrivals(std::vector<workload_request>& requests, std::uint64_t seed) {
  std::size_t groups = requests.empty() ? 0 : 1;
  for (std::size_t i = 1; i < requests.size(); ++i) {
    groups += requests[i].arrival_s > requests[i - 1].arrival_s ? 1U : 0U;
  }
  if (groups < 2 || static_cast<double>(requests.size()) < 1.5 * static_cast<double>(groups)) {
    return;
  }
  random_source random(seed);
  const double usual_gap = requests.back().arrival_s / static_cast<double>(groups - 1);
  for (std::size_t from = 0; from < requests.size();) {
    std::size_t to = from + 1;
    while (to < requests.size() && requests[to].arrival_s <= requests[from].arrival_s) {
      ++to;
    }
    const double start = requests[from].arrival_s;
    const double gap = to < requests.size() ? requests[to].arrival_s - start : usual_gap;
    for (std::size_t i = from; i < to; ++i) {
      requests[i].arrival_s = start + random.uniform() * gap;
    }
    from = to;
  }
}

trace_result<workload> read_lines(std::string_view text, const std::string& file, read_line read, bool has_header) {
  workload result;
  std::size_t number = 0;
  if (has_header) {
    static_cast<void>(take_line(text));
    ++number;
  }
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    const trace_place place{file, ++number};
    if (line.empty()) {
      continue;
    }
    if (line.size() > trace_line_bytes_max) {
      return place.error({}, {}, "is longer than " + std::to_string(trace_line_bytes_max) + " bytes");
    }
    if (result.requests.size() == trace_requests_max) {
      return place.error({}, {}, "is beyond " + std::to_string(trace_requests_max) + " requests");
    }
    auto request = read(place, line);
    if (!request) {
      return tl::unexpected(request.error());
    }
    result.requests.push_back(std::move(*request));
  }
  if (result.requests.empty()) {
    return trace_place{file}.error({}, {}, "holds no request");
  }
  return result;
}

} // namespace

tl::expected<workload, workload_error> parse_trace(std::string_view text, const std::string& name, std::uint64_t seed) {
  std::string_view rest = text;
  const std::string_view first = take_line(rest);
  const bool is_recorded = first.starts_with('{') && first.find("\"rankwise_requests\"") != std::string_view::npos;
  const bool is_mooncake = !is_recorded && first.starts_with('{');
  trace_result<workload> result;
  if (is_recorded) {
    const auto block_tokens = read_recorded_head(trace_place{name, 1}, first);
    if (!block_tokens) {
      return tl::unexpected(block_tokens.error());
    }
    result = read_lines(text, name, &read_recorded, true);
    if (result && *block_tokens > 0) {
      result->block_tokens = *block_tokens;
    }
  } else if (is_mooncake) {
    result = read_lines(text, name, &read_mooncake, false);
  } else if (first == azure_header) {
    result = read_lines(text, name, &read_azure, true);
  } else if (first == plain_header) {
    result = read_lines(text, name, &read_plain, true);
  } else {
    return trace_place{name, 1}.error({}, first,
                                      "begins no known format: Mooncake jsonl, a file of rankwise record, " +
                                          std::string(azure_header) + " or " + std::string(plain_header));
  }
  if (!result) {
    return result;
  }
  result->name = name;
  finish_arrivals(result->requests);
  if (is_mooncake) {
    spread_equal_arrivals(result->requests, seed);
    finish_arrivals(result->requests);
  }
  return result;
}

tl::expected<workload, workload_error> load_workload(const std::filesystem::path& path, std::uint64_t seed,
                                                     const workload_limits& limits) {
  if (is_servegen_folder(path)) {
    return load_servegen(path, seed, limits);
  }
  const std::string name = path.string();
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return trace_place{name}.error({}, {}, "is a folder without chunk-*-trace.csv, so no ServeGen data");
  }
  const auto text = read_file(path, trace_bytes_max);
  if (!text) {
    return tl::unexpected(text.error());
  }
  auto whole = parse_trace(*text, name, seed);
  if (!whole) {
    return whole;
  }
  return limited(std::move(*whole), limits);
}

} // namespace rankwise::sim
