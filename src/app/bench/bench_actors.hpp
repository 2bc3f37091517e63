#pragma once

#include "app/bench/bench_path.hpp"

#include <cstdint>

/// Rate and latency of the ways that a request may take inside a node, memory of those in flight, cost of a placement.
namespace rankwise::app {

struct path_options {
  path_kind kind = path_kind::actors;
  int ranks = 8;
  std::uint32_t prompt_tokens = 128;
  std::uint32_t requests = 10'000;
  double requests_per_s = 0; ///< 0: as fast as it goes, `window` at once
  std::uint32_t window = 512;
};

struct path_result {
  double requests_per_s = 0;
  double cpu_us = 0; ///< of this process, per request
  double dispatch_p50_us = 0;
  double dispatch_p99_us = 0;
  double answer_p50_us = 0; ///< from submission to its (one) token at the sink
  double answer_p99_us = 0;
  actor_handlers handlers; ///< zeros without actors
};

/// Throws std::runtime_error when a request is not answered.
[[nodiscard]] path_result run_path(const path_options& options);

struct in_flight_result {
  std::uint32_t requests = 0;
  double bytes_per_request = 0; ///< of resident memory, the request itself included
  actor_handlers handlers;
};

/// Holds `requests` requests open at once.
[[nodiscard]] in_flight_result run_in_flight(int ranks, std::uint32_t requests, std::uint32_t prompt_tokens);

/// Nanoseconds to choose a rank by the default policy, charge it, and release the charge.
[[nodiscard]] double placement_ns(std::uint16_t ranks, std::uint32_t placements);

} // namespace rankwise::app
