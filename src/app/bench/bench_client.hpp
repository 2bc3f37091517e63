#pragma once

#include <cstdint>
#include <functional>
#include <string>

/// The client of `rankwise bench`, on one thread. Every token is checked.
namespace rankwise::app {

/// Many open streams, read as fast as they come.
struct bench_streams_options {
  std::string target;
  std::uint32_t streams = 512;
  std::uint32_t connections = 4;
  double warm_up_s = 1.5;      ///< from the start of all streams to the start of the window
  double seconds = 4;          ///< the window
  std::function<double()> cpu; ///< CPU seconds of the server so far; read at both ends of the window
};

struct bench_streams_result {
  std::uint64_t tokens = 0;
  std::uint64_t chunks = 0;
  double seconds = 0;
  double cpu_s = 0;
  double gap_p50_ms = 0; ///< between two chunks of one stream
  double gap_p99_ms = 0;
  std::string error; ///< not empty: a stream ended early, or a token was wrong
};

[[nodiscard]] bench_streams_result run_bench_streams(const bench_streams_options& options);

/// Requests at even distances, whatever becomes of the earlier ones.
struct bench_arrivals_options {
  std::string target;
  std::string rid_prefix = "bench";
  std::uint32_t connections = 4;
  std::uint32_t requests = 10'000;
  double requests_per_s = 2'000;
  std::uint32_t prompt_tokens = 16;
  std::uint32_t tokens = 25;
  double wait_s = 10; ///< for the answers, after the last request
};

struct bench_arrivals_result {
  std::uint32_t completed = 0; ///< with all tokens, each one right
  double late_p99_ms = 0;      ///< requests leave this much after their time
  std::string error;           ///< of the first that did not complete
};

[[nodiscard]] bench_arrivals_result run_bench_arrivals(const bench_arrivals_options& options);

} // namespace rankwise::app
