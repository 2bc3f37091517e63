#include "app/sim/decisions_csv.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rankwise::app {

std::string decisions_csv(const std::vector<policy_decisions>& runs, bool pair) {
  std::string text = "request";
  const bool several = runs.size() > 1;
  std::size_t requests = 0;
  for (const auto& run : runs) {
    text += several ? fmt::format(",{0}_time_s,{0}", run.policy) : ",time_s,rank";
    if (pair)
      text += several ? fmt::format(",{}_prefill", run.policy) : ",prefill_rank";
    requests = std::max(requests, run.requests.size());
  }
  text += '\n';
  for (std::size_t i = 0; i < requests; ++i) {
    std::string line = fmt::format("{}", i);
    bool placed = false;
    for (const auto& run : runs) {
      if (i >= run.requests.size() || run.requests[i].bound_s < 0) {
        line += pair ? ",,," : ",,";
        continue;
      }
      const auto& q = run.requests[i];
      placed = true;
      line += fmt::format(",{:.9f},{}", q.bound_s, q.rank);
      if (pair)
        line += fmt::format(",{}", q.prefill_rank);
    }
    if (placed)
      text += line + '\n';
  }
  return text;
}

} // namespace rankwise::app
