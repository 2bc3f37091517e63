#include "app/sim/line_plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

namespace rankwise::app {

namespace {

// Distinguishable without red against green.
constexpr std::array<const char*, 12> colours{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
                                              "#7f7f7f", "#8c6d1f", "#5254a3", "#17becf", "#a55194", "#31a354"};
constexpr double width = 960;
constexpr double height = 420;
constexpr double left = 72;
constexpr double right = 190;
constexpr double top = 40;
constexpr double bottom = 52;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return result;
}

double nice_step(double span, int count) {
  const double raw = span / count;
  const double magnitude = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * magnitude)
      return factor * magnitude;
  return 10 * magnitude;
}

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
  const double y_step = nice_step(y_max, 5);
  const double y_top = std::ceil(y_max / y_step - 1e-9) * y_step;
  const auto x_of = [&](double x) {
    const double share = axes.log_x ? std::log(std::max(x, x_min) / x_min) / std::log(x_max / x_min) : x / x_max;
    return left + plot_width * share;
  };
  const auto y_of = [&](double y) { return top + plot_height * (1 - y / y_top); };
  std::string svg =
      fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
                  "fill=\"white\"/>\n<text x=\"{2}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{3}</text>\n",
                  width, height, left, escaped(axes.title));
  for (double y = 0; y <= y_top + 1e-12; y += y_step)
    svg += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#dddddd\"/>"
                       "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
                       left, left + plot_width, y_of(y), left - 6, y_of(y) + 4, y);
  std::vector<double> ticks;
  if (axes.log_x) {
    for (double tick = std::pow(10.0, std::floor(std::log10(x_min))); tick <= x_max; tick *= 10)
      for (const double factor : {1.0, 2.0, 5.0})
        if (tick * factor >= x_min && tick * factor <= x_max)
          ticks.push_back(tick * factor);
  } else {
    for (double tick = 0; tick <= x_max + 1e-12; tick += nice_step(x_max, 8))
      ticks.push_back(tick);
  }
  for (const double tick : ticks)
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#eeeeee\"/>"
                       "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.4g}</text>\n",
                       x_of(tick), top, top + plot_height, top + plot_height + 16, tick);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", left + plot_width / 2,
                     height - 12, escaped(axes.x));
  svg += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     top + plot_height / 2, escaped(axes.y));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto* colour = colours[i % colours.size()];
    const auto* dashes = i >= colours.size() ? " stroke-dasharray=\"5 3\"" : "";
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
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{} points=\"{}\"/>\n", colour, dashes,
                       points);
    const double ly = top + 10 + 17 * static_cast<double>(i);
    svg += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
                       "stroke-width=\"3\"{}/><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       left + plot_width + 14, left + plot_width + 34, ly, ly, colour, dashes, left + plot_width + 40,
                       ly + 4, escaped(lines[i].label));
  }
  return svg + "</svg>\n";
}

} // namespace rankwise::app
