#include "sim/random.hpp"
#include "sim/trace_fields.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

namespace rankwise::sim {

namespace {

constexpr std::uintmax_t chunk_bytes_max = 64ULL << 20;
constexpr std::size_t clients_max = 65'536;
constexpr double window_s = 600;
constexpr double day_s = 86'400;
constexpr double default_span_s = 3600;

/// A distribution over whole numbers, as drawn from.
struct length_distribution {
  std::vector<std::uint32_t> lengths;
  std::vector<double> cumulative_weights;

  [[nodiscard]] std::uint32_t draw(random_source& random) const { return lengths[random.pick(cumulative_weights)]; }
};

struct arrival_window {
  double start_s = 0;
  bool is_gamma = true;
  double shape = 1;
  double scale_s = 1;
};

struct length_period {
  length_distribution input;
  length_distribution output;
};

struct client {
  std::string dataset_file;
  std::vector<arrival_window> windows;     ///< those with a rate above 0, by start
  std::map<double, length_period> lengths; ///< by the start of their validity
};

/// The text of a Python dictionary {45: 0.0096, 46: 0.0117}.
trace_result<length_distribution> read_distribution(const trace_place& place, std::string_view field,
                                                    std::string_view text) {
  length_distribution result;
  double total = 0;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  const auto bad = [&] {
    const auto offset = static_cast<std::size_t>(at - text.data());
    return place.error(field, text.substr(std::min(offset, text.size()), 20), "is not an entry like 45: 0.0096");
  };
  const auto skip = [&](std::string_view characters) {
    while (at != end && characters.find(*at) != std::string_view::npos) {
      ++at;
    }
  };
  skip("{ ");
  while (at != end && *at != '}') {
    double length = 0;
    double weight = 0;
    const auto after_length = std::from_chars(at, end, length);
    if (after_length.ec != std::errc{} || length < 0 || length > trace_tokens_max) {
      return bad();
    }
    at = after_length.ptr;
    skip(": ");
    const auto after_weight = std::from_chars(at, end, weight);
    if (after_weight.ec != std::errc{} || !(weight >= 0)) {
      return bad();
    }
    at = after_weight.ptr;
    skip(", ");
    total += weight;
    result.lengths.push_back(static_cast<std::uint32_t>(std::max(length, 1.0)));
    result.cumulative_weights.push_back(total);
  }
  if (!(total > 0)) {
    result = {};
  }
  return result;
}

trace_result<std::map<double, length_period>> read_dataset(const std::filesystem::path& path) {
  const std::string name = path.string();
  const trace_place place{name};
  const auto text = read_file(path, chunk_bytes_max);
  if (!text) {
    return tl::unexpected(text.error());
  }
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) {
    return place.error({}, {}, "is not a JSON object");
  }
  std::map<double, length_period> periods;
  for (const auto& [start_text, fields] : json.items()) {
    const auto start = read_amount(place, "start of a period", start_text);
    if (!start) {
      return tl::unexpected(start.error());
    }
    length_period period;
    for (const auto& [field, into] : {std::pair<const char*, length_distribution*>{"input_tokens", &period.input},
                                      std::pair<const char*, length_distribution*>{"output_tokens", &period.output}}) {
      const auto found = fields.find(field);
      if (found == fields.end() || !found->is_string()) {
        return place.error(std::string(start_text) + "." + field, {}, "is missing or no text");
      }
      auto distribution =
          read_distribution(place, std::string(start_text) + "." + field, found->get_ref<const std::string&>());
      if (!distribution) {
        return tl::unexpected(distribution.error());
      }
      *into = std::move(*distribution);
    }
    if (!period.input.lengths.empty() && !period.output.lengths.empty()) {
      periods.emplace(*start, std::move(period));
    }
  }
  return periods;
}

trace_result<std::optional<arrival_window>> read_window(const trace_place& place, std::string_view line) {
  const auto fields = split_csv(line);
  if (fields.size() != 6) {
    return place.error({}, line, "has " + std::to_string(fields.size()) + " columns instead of 6");
  }
  const auto start = read_amount(place, "start", fields[0]);
  const auto rate = read_amount(place, "rate", fields[1]);
  const auto shape = read_amount(place, "shape", fields[4]);
  const auto scale = read_amount(place, "scale", fields[5]);
  for (const auto* number : {&start, &rate, &shape, &scale}) {
    if (!*number) {
      return tl::unexpected(number->error());
    }
  }
  if (*rate == 0) {
    return std::optional<arrival_window>();
  }
  const bool is_gamma = fields[3] == "Gamma";
  if (!is_gamma && fields[3] != "Weibull") {
    return place.error("distribution", fields[3], "is neither Gamma nor Weibull");
  }
  if (*shape <= 0 || *scale <= 0) {
    return place.error(*shape <= 0 ? "shape" : "scale", *shape <= 0 ? fields[4] : fields[5], "is not above 0");
  }
  return std::optional(arrival_window{*start, is_gamma, *shape, *scale});
}

trace_result<client> read_client(const std::filesystem::path& trace_path) {
  const std::string name = trace_path.string();
  const auto text = read_file(trace_path, chunk_bytes_max);
  if (!text) {
    return tl::unexpected(text.error());
  }
  client result;
  std::string_view rest = *text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (line.empty()) {
      continue;
    }
    auto window = read_window(trace_place{name, number}, line);
    if (!window) {
      return tl::unexpected(window.error());
    }
    if (*window) {
      result.windows.push_back(**window);
    }
  }
  std::string dataset_name = trace_path.filename().string();
  dataset_name.replace(dataset_name.rfind("trace.csv"), std::string_view("trace.csv").size(), "dataset.json");
  const auto dataset_path = trace_path.parent_path() / dataset_name;
  result.dataset_file = dataset_path.string();
  auto lengths = read_dataset(dataset_path);
  if (!lengths) {
    return tl::unexpected(lengths.error());
  }
  result.lengths = std::move(*lengths);
  if (!result.windows.empty() && result.lengths.empty()) {
    return trace_place{result.dataset_file}.error({}, {}, "holds no lengths although its client sends requests");
  }
  return result;
}

std::vector<std::filesystem::path> trace_paths(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("chunk-") && name.ends_with("-trace.csv") && paths.size() < clients_max) {
      paths.push_back(entry->path());
    }
  }
  std::sort(paths.begin(), paths.end()); // the order of a folder differs between machines
  return paths;
}

const length_period& lengths_at(const client& c, double at_s) {
  const auto later = c.lengths.upper_bound(at_s);
  return later == c.lengths.begin() ? later->second : std::prev(later)->second;
}

void draw_window(const client& c, const arrival_window& window, random_source& random,
                 std::vector<workload_request>& into) {
  const auto interval = [&] {
    return window.is_gamma ? random.gamma(window.shape, window.scale_s) : random.weibull(window.shape, window.scale_s);
  };
  const length_period& lengths = lengths_at(c, window.start_s);
  // The window opens somewhere inside an interval.
  for (double at = interval() * random.uniform(); at < window_s && into.size() < trace_requests_max; at += interval()) {
    into.push_back({window.start_s + at, lengths.input.draw(random), lengths.output.draw(random), {}});
  }
}

} // namespace

bool is_servegen_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) && !trace_paths(path).empty();
}

trace_result<workload> load_servegen(const std::filesystem::path& folder, std::uint64_t seed,
                                     const workload_limits& limits) {
  std::vector<client> clients;
  for (const auto& path : trace_paths(folder)) {
    auto loaded = read_client(path);
    if (!loaded) {
      return tl::unexpected(loaded.error());
    }
    clients.push_back(std::move(*loaded));
  }
  const bool is_limited = std::isfinite(limits.duration_s) || limits.requests < trace_requests_max;
  const double span_s = std::isfinite(limits.duration_s) ? std::min(limits.duration_s * limits.speed, day_s)
                        : is_limited                     ? day_s
                                                         : default_span_s;
  workload result;
  result.name = folder.string();
  std::size_t drawn_clients = 0;
  for (double start = 0; start < span_s && result.requests.size() < std::min(limits.requests, trace_requests_max);
       start += window_s) {
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const auto& windows = clients[i].windows;
      const auto window =
          std::find_if(windows.begin(), windows.end(), [&](const auto& w) { return w.start_s == start; });
      if (window != windows.end()) {
        // One source per client and window: adding a client leaves the others as they were.
        random_source random(seed ^ (static_cast<std::uint64_t>(i) << 32) ^ static_cast<std::uint64_t>(start));
        draw_window(clients[i], *window, random, result.requests);
        ++drawn_clients;
      }
    }
  }
  if (drawn_clients == 0) {
    return trace_place{result.name}.error({}, {}, "holds no client that sends requests in that part of the day");
  }
  std::erase_if(result.requests, [&](const auto& r) { return r.arrival_s >= span_s; });
  finish_arrivals(result.requests);
  return limited(std::move(result), limits);
}

} // namespace rankwise::sim
