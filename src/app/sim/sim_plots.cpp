#include "app/sim/sim_plots.hpp"

#include "app/sim/line_plot.hpp"
#include "app/sim/sim_files.hpp"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <utility>

namespace rankwise::app {

namespace {

/// How many percent of the values are not above which.
plot_line distribution(const std::string& label, std::vector<double> values) {
  plot_line line{label, {}};
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i)
    line.points.emplace_back(values[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
  return line;
}

/// A line of `factor` times each value, over the time of the series.
plot_line over_time(std::string label, const std::vector<double>& at_s, const std::vector<double>& values,
                    double factor = 1) {
  plot_line line{std::move(label), {}};
  for (std::size_t i = 0; i < at_s.size(); ++i)
    line.points.emplace_back(at_s[i], factor * values[i]);
  return line;
}

plot_line ttft_of(const policy_run& r) {
  std::vector<double> waits;
  for (const auto& q : r.result.requests)
    if (q.first_token_s >= 0)
      waits.push_back(q.first_token_s - q.arrival_s);
  return distribution(r.policy, std::move(waits));
}

plot_line gaps_of(const policy_run& r) {
  plot_line line{r.policy, {}};
  std::uint64_t seen = 0;
  for (const auto& [end, count] : r.result.gaps.buckets()) {
    seen += count;
    line.points.emplace_back(end * 1e3, 100.0 * static_cast<double>(seen) / static_cast<double>(r.result.gaps.count()));
  }
  return line;
}

std::vector<plot_line> kv_of(const policy_run& r) {
  const auto& series = r.result.series;
  std::vector<plot_line> lines;
  for (std::size_t rank = 0; rank < series.kv_share.size(); ++rank)
    lines.push_back(over_time(fmt::format("rank {}", rank), series.at_s, series.kv_share[rank], 100));
  return lines;
}

std::vector<plot_line> queues_of(const policy_run& r) {
  const auto& series = r.result.series;
  std::vector<plot_line> lines;
  for (std::size_t rank = 0; rank < series.queue.size(); ++rank)
    lines.push_back(over_time(fmt::format("rank {}", rank), series.at_s, series.queue[rank]));
  lines.push_back(over_time("in the controller", series.at_s, series.held));
  return lines;
}

} // namespace

void plot_runs(const std::string& folder, const std::string& title, const std::vector<policy_run>& runs) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path out = folder;
  std::vector<plot_line> ttft;
  std::vector<plot_line> gaps;
  for (const auto& r : runs) {
    ttft.push_back(ttft_of(r));
    gaps.push_back(gaps_of(r));
    write_file(out / ("kv-" + r.policy + ".svg"),
               line_plot_svg({"KV in use by rank, " + r.policy + ", " + title, "time (s)", "KV in use (%)"}, kv_of(r)));
    write_file(out / ("queue-" + r.policy + ".svg"),
               line_plot_svg({"Requests that wait, " + r.policy + ", " + title, "time (s)", "requests"}, queues_of(r)));
  }
  write_file(out / "ttft.svg",
             line_plot_svg({"Time to first token, " + title, "time to first token (s)", "requests (%)", true}, ttft));
  write_file(out / "gaps.svg", line_plot_svg({"Time between tokens, " + title, "gap (ms)", "gaps (%)", true}, gaps));
}

} // namespace rankwise::app
