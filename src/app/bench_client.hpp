#pragma once

#include <cstdint>
#include <functional>
#include <string>

/// The client of `rankwise bench`: many open streams, read as fast as they come, on one thread.
namespace rankwise::app {

struct bench_client_options {
  std::string target;
  std::uint32_t streams = 512;
  std::uint32_t channels = 4;  ///< HTTP/2 connections
  double warm_up_s = 1.5;      ///< from the start of all streams to the start of the window
  double seconds = 4;          ///< the window
  std::function<double()> cpu; ///< CPU seconds of the server so far; read at both ends of the window
};

struct bench_client_result {
  std::uint64_t tokens = 0;
  std::uint64_t chunks = 0;
  double seconds = 0;
  double cpu_s = 0;
  double gap_p50_ms = 0; ///< between two chunks of one stream
  double gap_p99_ms = 0;
  std::string error; ///< not empty: a stream ended early, or its token count did not add up
};

[[nodiscard]] bench_client_result run_bench_client(const bench_client_options& options);

} // namespace rankwise::app
