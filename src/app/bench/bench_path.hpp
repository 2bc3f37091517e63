#pragma once

#include "core/placement/pool_controller.hpp"
#include "core/request/request.hpp"
#include "core/request/stream_sink.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

/// The way of a request inside a node, without a front: submitted in the process, placed, sent by ZeroMQ to a simulated
/// engine (a process of its own), answered, delivered to a sink.
namespace rankwise::app {

enum class path_kind {
  actors,        ///< as in a node
  one_hand_over, ///< the same table, controller, codec and engine hub without actors, run by one thread behind one
                 ///< queue
  calls,         ///< these called by the submitting and the receiving thread, with nothing but a mutex between them
};

/// Of all actors of a node.
struct actor_handlers {
  std::uint64_t handled = 0;
  std::uint64_t slow = 0; ///< longer than 0.5 ms
  double longest_ms = 0;
};

class bench_path {
 public:
  bench_path() = default;
  virtual ~bench_path() = default;
  bench_path(const bench_path&) = delete;
  bench_path& operator=(const bench_path&) = delete;

  virtual void submit(core::stream_id stream, core::request_ptr request) = 0;
  /// How many of the submitted requests have a rank and no end. Asks, so it takes a while.
  [[nodiscard]] virtual std::uint64_t requests_in_flight() = 0;
  [[nodiscard]] virtual actor_handlers handlers() = 0; ///< zeros without actors
  /// Microseconds from `received_at` until ZeroMQ had it, of every request so far.
  [[nodiscard]] virtual std::vector<double> take_dispatch_us() = 0;
};

/// With `ranks` ranks that are up and make a step every `step_ms`. Throws std::runtime_error when they do not come up.
[[nodiscard]] std::unique_ptr<bench_path> make_path(path_kind kind, core::stream_sink& sink, int ranks, double step_ms);

/// A pool that refuses nothing and lets nobody wait: a path without actors has no waiting room.
[[nodiscard]] core::pool_options wide_pool(int ranks);

/// Throws std::runtime_error that names `what` after 60 s.
void wait_until(const std::function<bool()>& done, const char* what);

} // namespace rankwise::app
