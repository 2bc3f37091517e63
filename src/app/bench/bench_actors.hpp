#pragma once

#include <cstdint>

/// The way of a request inside a node, without a front: submitted in the process, placed, sent by ZeroMQ to a simulated
/// engine, answered, delivered. Once through the actors, and once through the same table, controller, codec and engine
/// hub with nothing but a mutex between the threads.
namespace rankwise::app {

enum class path_kind {
  actors,        ///< as in a node
  one_hand_over, ///< the same adapters without actors, run by one thread behind one queue
  calls,         ///< the same adapters without actors, called by the submitting and the receiving thread
};

struct path_options {
  path_kind kind = path_kind::actors;
  int ranks = 8;
  std::uint32_t prompt_tokens = 128;
  std::uint32_t requests = 10'000;
  double requests_per_s = 0; ///< 0: as fast as it goes, `window` at once
  std::uint32_t window = 512;
};

/// Of all actors of a node.
struct actor_handlers {
  std::uint64_t handled = 0;
  std::uint64_t slow = 0; ///< longer than 0.5 ms
  double longest_ms = 0;
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
