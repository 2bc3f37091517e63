#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rankwise::app {

struct plot_line {
  std::string label;
  std::vector<std::pair<double, double>> points; ///< in order of x
};

struct plot_axes {
  std::string title;
  std::string x; ///< with its unit
  std::string y;
  bool log_x = false;
};

/// An SVG with axes, units and a legend. Points closer together than a pixel are thinned out.
[[nodiscard]] std::string line_plot_svg(const plot_axes& axes, const std::vector<plot_line>& lines);

} // namespace rankwise::app
