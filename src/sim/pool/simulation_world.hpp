#pragma once

#include "core/placement/pool_controller.hpp"
#include "core/placement/waiting_room.hpp"
#include "sim/pool/event_queue.hpp"
#include "sim/pool/simulated_pool.hpp"
#include "sim/random.hpp"
#include "sim/simulation_options.hpp"
#include "sim/simulation_result.hpp"
#include "sim/workload.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rankwise::sim {

/// The pool whose tokens go to the client: the unified or decode one.
inline constexpr std::uint32_t stream_pool = 0;
/// The pool that computes prompts for the other one; only a pair has it.
inline constexpr std::uint32_t prefill_pool = 1;

/// One front end: a controller for each pool, and the requests that wait for a rank.
struct front_end {
  std::vector<std::unique_ptr<core::pool_controller>> controllers; ///< By pool.
  core::waiting_room held;                                         ///< Requests that wait for a rank of the first pool.
  std::vector<std::vector<std::uint64_t>> generated; ///< By pool and rank: tokens of its requests that are still there.

  explicit front_end(const core::pool_options& pool)
      : held(pool.waiting_requests_max, pool.waiting_time_max, pool.waiting_order) {}
};

/// The part of a request in one pool.
struct leg_state {
  std::uint16_t rank = 0;
  core::rank_epoch epoch = 0;
  bool placed = false;     ///< It was given a rank, which was not lost since.
  bool on_the_way = false; ///< It was given a rank and has not reached its engine.
  bool ended = false;      ///< Its engine ended it.
};

/// Where a request stands.
struct request_state {
  core::timestamp last_token = never; ///< `never`: it has had none.
  std::vector<std::uint64_t> blocks;  ///< Of its prompt, for the engine and the policy.
  std::array<leg_state, 2> legs;      ///< By pool.
  std::uint32_t attempt = 0;          ///< Counts on when its legs are given up and placed again.
  std::uint32_t counted = 0;          ///< Those of its tokens that are in front_end::generated.
};

/// All that a simulation knows at its present moment: time, ranks, controllers, requests, and the result so far. The
/// parts of a simulation share it; each changes what its own header says.
class simulation_world {
 public:
  simulation_world(const workload& played, const simulation_options& asked);
  simulation_world(const simulation_world&) = delete;
  simulation_world& operator=(const simulation_world&) = delete;

  const workload& load;
  const simulation_options options; ///< With what the caller left open filled in.
  random_source random;
  core::timestamp now{};
  event_queue events;
  std::vector<simulated_pool> pools; ///< `stream_pool` and, of a pair, `prefill_pool`.
  std::vector<std::unique_ptr<front_end>> front_ends;
  std::vector<request_state> requests; ///< By index in the workload.
  std::uint64_t arrived = 0;           ///< Requests that arrived so far.
  std::uint64_t open = 0;              ///< Those of them that have neither ended nor been refused.
  simulation_result result;

  [[nodiscard]] bool is_pair() const noexcept { return pools.size() == 2; }
  /// The pool that a request needs first.
  [[nodiscard]] std::uint32_t first_pool() const noexcept { return is_pair() ? prefill_pool : stream_pool; }
  [[nodiscard]] std::uint32_t front_of(std::uint32_t request) const noexcept {
    return request % static_cast<std::uint32_t>(front_ends.size());
  }
  [[nodiscard]] front_end& front_end_of(std::uint32_t request) noexcept { return *front_ends[front_of(request)]; }
  /// Whether a request is open or still to come.
  [[nodiscard]] bool has_work() const noexcept { return open > 0 || arrived < load.requests.size(); }

  /// What an engine calls the legs of a request's present attempt.
  [[nodiscard]] std::uint64_t number_of(std::uint32_t request) const {
    return std::uint64_t{requests[request].attempt} << 32 | request;
  }
  /// Whether that attempt is the present one: what an engine says of others means nothing.
  [[nodiscard]] bool is_current(std::uint64_t number) const {
    return number >> 32 == requests[static_cast<std::uint32_t>(number)].attempt;
  }
  [[nodiscard]] std::string rid_of(std::uint32_t request) const {
    return std::to_string(request + 1) + "~" + std::to_string(requests[request].attempt);
  }
  /// The bootstrap room by which the legs of a pair find each other.
  [[nodiscard]] std::int64_t room_of(std::uint32_t request) const {
    return static_cast<std::int64_t>(request) * 16 + requests[request].attempt % 16;
  }
  /// The options of an engine in a pool of that role.
  [[nodiscard]] engine_rank_options engine_of(core::pool_role role) const;
  /// A leg has reached its engine, or never will.
  void end_way(std::uint32_t request, std::uint32_t pool);

  /// Takes something that happened now into the hash of the run.
  void note(std::uint64_t what, std::uint64_t a, std::uint64_t b);
  /// Counts the steps of a rank's process that ends, or that the run ends with.
  void count_work_of(const engine_rank_model& engine);

 private:
  void make_pools();
  void make_front_ends();
  [[nodiscard]] std::unique_ptr<core::pool_controller> make_controller(std::uint32_t front_end, std::uint32_t pool);
};

/// A moment in seconds since the start, and back.
[[nodiscard]] inline double seconds(core::timestamp at) noexcept {
  return core::to_seconds(at.time_since_epoch());
}
[[nodiscard]] inline core::duration duration_of(double seconds) noexcept {
  return core::duration{std::llround(seconds * 1e9)};
}
[[nodiscard]] inline core::timestamp at_seconds(double s) noexcept {
  return core::timestamp{} + duration_of(s);
}

/// What `note` is told about a request.
namespace noted {
inline constexpr std::uint64_t placed = 1;      ///< plus the pool; b = rank
inline constexpr std::uint64_t first_token = 3; ///< b = rank
inline constexpr std::uint64_t completed = 4;   ///< b = tokens
inline constexpr std::uint64_t failed = 5;      ///< b = tokens
inline constexpr std::uint64_t refused = 9;
} // namespace noted

} // namespace rankwise::sim
