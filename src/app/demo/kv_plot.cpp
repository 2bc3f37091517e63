#include "app/demo/kv_plot.hpp"

#include "app/plot/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace rankwise::app {

namespace {

constexpr double width = 960;
constexpr double panel_height = 240;
constexpr double left = 64;
constexpr double right = 150;
constexpr double top = 44;
constexpr double gap = 64;

} // namespace

std::string kv_plot_svg(const std::string& title, const std::vector<kv_series>& series,
                        const std::vector<plot_mark>& marks) {
  std::map<std::string, std::vector<const kv_series*>> pools;
  double end = 1;
  for (const auto& s : series) {
    pools[s.label.substr(0, s.label.find('/'))].push_back(&s);
    if (!s.at_s.empty())
      end = std::max(end, s.at_s.back());
  }
  // What happened is written above the panels, in as many rows as keep the texts apart.
  const double plot_width = width - left - right;
  const auto x_of = [&](double s) { return left + plot_width * s / end; };
  std::vector<double> row_ends;
  std::vector<std::size_t> rows;
  for (const auto& mark : marks) {
    const double from = x_of(mark.at_s);
    const auto row = static_cast<std::size_t>(
        std::find_if(row_ends.begin(), row_ends.end(), [&](double x) { return x < from; }) - row_ends.begin());
    if (row == row_ends.size())
      row_ends.push_back(0);
    row_ends[row] = from + 12 + 6.2 * static_cast<double>(mark.text.size());
    rows.push_back(row);
  }
  const double panels_top = top + 14 * static_cast<double>(row_ends.size());
  const double height = panels_top + static_cast<double>(std::max<std::size_t>(pools.size(), 1)) * (panel_height + gap);
  std::string out = svg::page(width, height, left, 20, title);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const double y = top + 14 * static_cast<double>(rows[i]);
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#b00020\" "
                       "stroke-dasharray=\"4 3\"/><text x=\"{3:.1f}\" y=\"{4:.1f}\" fill=\"#b00020\" "
                       "font-size=\"10\">{5}</text>\n",
                       x_of(marks[i].at_s), y - 8, panels_top, x_of(marks[i].at_s) + 4, y, svg::escaped(marks[i].text));
  }
  double y0 = panels_top;
  for (const auto& [pool, lines] : pools) {
    double highest = 0.01;
    for (const auto* line : lines)
      for (const double share : line->share)
        highest = std::max(highest, share);
    const double step_y = svg::nice_step(highest * 100, 4);
    const double top_percent = std::ceil(highest * 100 / step_y) * step_y;
    const auto y_of = [&](double percent) { return y0 + panel_height * (1 - percent / top_percent); };
    for (double p = 0; p <= top_percent + 1e-9; p += step_y)
      out +=
          fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#dddddd\"/><text x=\"{3}\" "
                      "y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
                      left, left + plot_width, y_of(p), left - 6, y_of(p) + 4, p);
    const double step_x = svg::nice_step(end, 8);
    for (double s = 0; s <= end + 1e-9; s += step_x)
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>\n", x_of(s),
                         y0 + panel_height + 16, s);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">time (s)</text>\n",
                       left + plot_width / 2, y0 + panel_height + 32);
    out += fmt::format(
        "<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{} KV in use (%)</text>\n",
        y0 + panel_height / 2, svg::escaped(pool));
    for (const auto& mark : marks)
      out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#b00020\" "
                         "stroke-dasharray=\"4 3\"/>\n",
                         x_of(mark.at_s), y0, y0 + panel_height);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto* colour = svg::colours[i % svg::colours.size()];
      std::string points;
      for (std::size_t k = 0; k < lines[i]->at_s.size(); ++k)
        points += fmt::format("{:.1f},{:.1f} ", x_of(lines[i]->at_s[k]), y_of(lines[i]->share[k] * 100));
      out +=
          fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n", colour, points);
      const double ly = y0 + 12 + 17 * static_cast<double>(i);
      out += svg::legend(left + plot_width, ly, colour, lines[i]->label);
    }
    y0 += panel_height + gap;
  }
  return out + "</svg>\n";
}

} // namespace rankwise::app
