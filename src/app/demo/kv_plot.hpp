#pragma once

#include <string>
#include <vector>

namespace rankwise::app {

/// KV in use of one rank over time.
struct kv_series {
  std::string label; ///< "decode/3"
  std::vector<double> at_s;
  std::vector<double> share; ///< 0 .. 1
};

struct plot_mark {
  double at_s = 0;
  std::string text;
};

/// An SVG with axes, units and a legend: one panel per pool, one line per rank, faults as vertical marks.
[[nodiscard]] std::string kv_plot_svg(const std::string& title, const std::vector<kv_series>& series,
                                      const std::vector<plot_mark>& marks);

} // namespace rankwise::app
