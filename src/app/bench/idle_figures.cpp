#include "app/bench/bench_groups.hpp"
#include "app/bench/bench_installation.hpp"

#include <chrono>
#include <fmt/format.h>
#include <thread>

namespace rankwise::app {

void measure_idle(const bench_options& o, std::vector<figure>& figures) {
  installation node{server_kind::node};
  installation reference{server_kind::grpcpp};
  std::this_thread::sleep_for(std::chrono::seconds{2});
  const auto start = std::chrono::steady_clock::now();
  const auto node_before = node.cpu();
  const auto reference_before = reference.cpu();
  std::this_thread::sleep_for(std::chrono::duration<double>{o.idle_s()});
  const auto node_used = node.cpu() - node_before;
  const auto reference_used = reference.cpu() - reference_before;
  const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  node.end();
  reference.end();
  figures.push_back({fmt::format("idle_{}_ranks", bench_rank_count), 100 * node_used / elapsed, "% core",
                     100 * reference_used / elapsed, figure::bound::value, 1});
}

} // namespace rankwise::app
