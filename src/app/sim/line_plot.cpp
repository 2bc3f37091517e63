#include "app/sim/line_plot.hpp"

#include "app/plot/svg.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace rankwise::app {

namespace {

constexpr double width = 960;
constexpr double height = 420;
constexpr double left = 72;
constexpr double right = 190;
constexpr double top = 40;
constexpr double bottom = 52;

} // namespace

std::string line_plot_svg(const plot_axes& axes, const std::vector<plot_line>& lines) {
  double x_min = axes.log_x ? 1e300 : 0;
  double x_max = axes.log_x ? 0 : 1e-9;
  double y_max = 1e-9;
  for (const auto& line : lines)
    for (const auto& [x, y] : line.points) {
      if (axes.log_x && x > 0)
        x_min = std::min(x_min, x);
      x_max = std::max(x_max, x);
      y_max = std::max(y_max, y);
    }
  if (axes.log_x && x_min >= x_max) {
    x_min = x_max > 0 ? x_max / 10 : 0.1;
    x_max = std::max(x_max, 1.0);
  }
  const double plot_width = width - left - right;
  const double plot_height = height - top - bottom;
  const double y_step = svg::nice_step(y_max, 5);
  const double y_top = std::ceil(y_max / y_step - 1e-9) * y_step;
  const auto x_of = [&](double x) {
    const double share = axes.log_x ? std::log(std::max(x, x_min) / x_min) / std::log(x_max / x_min) : x / x_max;
    return left + plot_width * share;
  };
  const auto y_of = [&](double y) { return top + plot_height * (1 - y / y_top); };
  std::string out = svg::page(width, height, left, 22, axes.title);
  for (double y = 0; y <= y_top + 1e-12; y += y_step)
    out += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#dddddd\"/>"
                       "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
                       left, left + plot_width, y_of(y), left - 6, y_of(y) + 4, y);
  std::vector<double> ticks;
  if (axes.log_x) {
    for (double tick = std::pow(10.0, std::floor(std::log10(x_min))); tick <= x_max; tick *= 10)
      for (const double factor : {1.0, 2.0, 5.0})
        if (tick * factor >= x_min && tick * factor <= x_max)
          ticks.push_back(tick * factor);
  } else {
    for (double tick = 0; tick <= x_max + 1e-12; tick += svg::nice_step(x_max, 8))
      ticks.push_back(tick);
  }
  for (const double tick : ticks)
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#eeeeee\"/>"
                       "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.4g}</text>\n",
                       x_of(tick), top, top + plot_height, top + plot_height + 16, tick);
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", left + plot_width / 2,
                     height - 12, svg::escaped(axes.x));
  out += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     top + plot_height / 2, svg::escaped(axes.y));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto* colour = svg::colours[i % svg::colours.size()];
    const auto* dashes = i >= svg::colours.size() ? " stroke-dasharray=\"5 3\"" : "";
    std::string points;
    double last_x = -10;
    double last_y = -10;
    for (std::size_t k = 0; k < lines[i].points.size(); ++k) {
      const double x = x_of(lines[i].points[k].first);
      const double y = y_of(lines[i].points[k].second);
      if (std::abs(x - last_x) < 0.7 && std::abs(y - last_y) < 0.7 && k + 1 < lines[i].points.size())
        continue;
      points += fmt::format("{:.1f},{:.1f} ", x, y);
      last_x = x;
      last_y = y;
    }
    out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{} points=\"{}\"/>\n", colour, dashes,
                       points);
    const double ly = top + 10 + 17 * static_cast<double>(i);
    out += svg::legend(left + plot_width, ly, colour, lines[i].label, dashes);
  }
  return out + "</svg>\n";
}

} // namespace rankwise::app
