#include "app/bench/bench_figure.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace rankwise::app {

using json = nlohmann::ordered_json;

std::optional<double> figure::ratio() const {
  return reference && *reference > 0 ? std::optional{value / *reference} : std::nullopt;
}

bool figure::holds() const {
  switch (on) {
  case bound::none:
    return true;
  case bound::value:
    return value <= limit;
  case bound::ratio:
    return ratio() && *ratio() <= limit;
  case bound::ratio_min:
    return ratio() && *ratio() >= limit;
  }
  return false;
}

std::string figure::target() const {
  return on == bound::none ? ""
                           : fmt::format("{} {} {:g}", on == bound::value ? "value" : "ratio",
                                         on == bound::ratio_min ? ">=" : "<=", limit);
}

json to_json(const std::vector<figure>& figures) {
  auto rows = json::array();
  for (const auto& f : figures)
    rows.push_back({{"name", f.name},
                    {"value", f.value},
                    {"unit", f.unit},
                    {"reference", f.reference ? json(*f.reference) : json(nullptr)},
                    {"ratio", f.ratio() ? json(*f.ratio()) : json(nullptr)},
                    {"target", f.on == figure::bound::none ? json(nullptr) : json(f.target())},
                    {"holds", f.holds()}});
  return rows;
}

void print(const std::vector<figure>& figures) {
  fmt::print("{:<40} {:>10} {:<8} {:>10} {:>7}  {:<14} {}\n", "FIGURE", "VALUE", "UNIT", "REFERENCE", "RATIO", "TARGET",
             "HOLDS");
  for (const auto& f : figures)
    fmt::print("{:<40} {:>10.2f} {:<8} {:>10} {:>7}  {:<14} {}\n", f.name, f.value, f.unit,
               f.reference ? fmt::format("{:.2f}", *f.reference) : "-",
               f.ratio() ? fmt::format("{:.2f}", *f.ratio()) : "-", f.target().empty() ? "-" : f.target(),
               f.on == figure::bound::none ? "-"
               : f.holds()                 ? "yes"
                                           : "NO");
}

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

} // namespace rankwise::app
