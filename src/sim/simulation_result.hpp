#pragma once

#include "sim/gap_histogram.hpp"
#include "sim/step_time.hpp"

#include <cstdint>
#include <optional>
#include <vector>

/// What came of a simulation.
namespace rankwise::sim {

/// One request's life. Times are seconds since the start; -1 says that it did not happen.
struct request_result {
  double arrival_s = -1;           ///< -1: not before the time limit.
  double bound_s = -1;             ///< When it was first given a rank.
  double first_token_s = -1;       ///< When its first token came out.
  double end_s = -1;               ///< When it was complete, or failed.
  std::uint32_t input_tokens = 0;  ///< Tokens of its prompt.
  std::uint32_t output_tokens = 0; ///< Tokens that it asked for.
  std::uint32_t generated = 0;     ///< Tokens that it got.
  std::uint32_t cached = 0;        ///< Tokens of its prompt that the rank's prefix cache had.
  std::int32_t priority = 0;
  std::optional<double> deadline_s; ///< Seconds from its arrival by which its first token was wanted.
  std::uint16_t rank = 0;           ///< Its rank in the unified or decode pool.
  std::uint16_t prefill_rank = 0;   ///< Of a pair: its rank in the prefill pool.
  bool refused = false;             ///< No rank took it.
  bool failed = false;              ///< An engine ended it, or it was lost with its rank.
};

/// Figures of the pool over time, one value for each entry of `at_s`.
struct simulation_series {
  std::vector<double> at_s;                  ///< Seconds since the start.
  std::vector<std::vector<double>> kv_share; ///< KV in use (0 to 1), by rank of the unified or decode pool.
  std::vector<std::vector<double>> queue;    ///< Requests that wait, by rank of the unified or prefill pool.
  std::vector<double> held;                  ///< Requests that wait in the controllers.
};

struct simulation_result {
  std::vector<request_result> requests; ///< In the workload's order; those that follow others arrived at other times.
  gap_histogram gaps;
  simulation_series series;
  double makespan_s = 0; ///< When the last request ended, in seconds since the start.
  /// The KV of the fullest rank over the mean of all, averaged over the time in which requests arrived.
  double busiest_to_mean_kv = 0;
  double busiest_to_mean_work = 0;           ///< The prompt tokens that the busiest rank computed over the mean of all.
  double prefix_hit_share = 0;               ///< The share of all prompt tokens that prefix caches had.
  std::uint64_t steps = 0;                   ///< Steps of all ranks.
  std::vector<measured_step> recorded_steps; ///< The steps of all ranks by their begin, when the options ask for them.
  std::uint64_t retractions = 0;             ///< Running requests that a rank had to put back for want of KV.
  std::uint64_t event_hash = 0; ///< Of every decision, first token and end, with its time: equal runs, equal hash.
  std::uint64_t reports_delivered = 0; ///< Load reports that reached the controllers.
  std::uint64_t held_most = 0;         ///< Requests that waited in one controller at once, at most.
  std::uint64_t charges_left = 0;      ///< Charges in the ledgers at the end; 0 unless the time limit ended the run.
  std::uint64_t held_left = 0;         ///< Requests that waited in the controllers at the end.
  std::vector<std::uint64_t> placed;   ///< Placements, by rank of the unified or decode pool.
};

} // namespace rankwise::sim
