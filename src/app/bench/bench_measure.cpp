#include "app/bench/bench_measure.hpp"

#include <ctime>
#include <stdexcept>
#include <string>

namespace rankwise::app {

double cpu_seconds(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0)
    throw std::runtime_error("cannot read the CPU time of process " + std::to_string(pid));
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

} // namespace rankwise::app
