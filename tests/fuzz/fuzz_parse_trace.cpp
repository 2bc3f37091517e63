#include "sim/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

/// A trace file of any content gives an error or requests in order.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = rankwise::sim::parse_trace({reinterpret_cast<const char*>(data), size}, "fuzz", 1);
  if (!parsed) {
    return 0;
  }
  double before = 0;
  for (const auto& request : parsed->requests) {
    if (!(request.arrival_s >= before)) {
      std::abort();
    }
    before = request.arrival_s;
  }
  return 0;
}
