#pragma once

#include <array>
#include <cmath>
#include <fmt/format.h>
#include <string>

/// What the program's plots have in common.
namespace rankwise::app::svg {

/// Of lines, distinguishable without red against green.
inline constexpr std::array<const char*, 12> colours{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
                                                     "#7f7f7f", "#8c6d1f", "#5254a3", "#17becf", "#a55194", "#31a354"};

[[nodiscard]] inline std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return result;
}

/// 1, 2 or 5 times a power of ten, so that about `count` of them fill `span`.
[[nodiscard]] inline double nice_step(double span, int count) {
  const double raw = span / count;
  const double magnitude = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * magnitude)
      return factor * magnitude;
  return 10 * magnitude;
}

/// The beginning of a file: a white page with a title.
[[nodiscard]] inline std::string page(double width, double height, double title_x, double title_y,
                                      const std::string& title) {
  return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
                     "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
                     "fill=\"white\"/>\n<text x=\"{2}\" y=\"{3}\" font-size=\"15\" font-weight=\"bold\">{4}</text>\n",
                     width, height, title_x, title_y, escaped(title));
}

/// A line of the legend whose plot ends at `x`. `dashes`: an attribute of the line, or nothing.
[[nodiscard]] inline std::string legend(double x, double y, const char* colour, const std::string& label,
                                        const char* dashes = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"3\"{}/>"
      "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
      x + 14, x + 34, y, y, colour, dashes, x + 40, y + 4, escaped(label));
}

} // namespace rankwise::app::svg
