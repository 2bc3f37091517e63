#include "sim/pool/simulated_clients.hpp"

#include <algorithm>

namespace rankwise::sim {

void simulated_clients::send(std::uint32_t request) {
  const auto& asked = world_.load.requests[request];
  if (!asked.after)
    queue_arrival(request + 1);
  ++world_.arrived;
  ++world_.open;
  auto& blocks = world_.requests[request].blocks;
  blocks = asked.prefix_blocks;
  if (world_.options.engine.prefix_block_tokens == 0)
    blocks.clear();
  else
    blocks.resize(std::min<std::size_t>(blocks.size(), asked.input_tokens / world_.load.block_tokens));
  auto& r = world_.result.requests[request];
  r.arrival_s = seconds(world_.now);
  r.input_tokens = asked.input_tokens;
  r.output_tokens = asked.output_tokens;
  r.priority = asked.priority;
  r.deadline_s = asked.deadline_s;
}

void simulated_clients::end(std::uint32_t request, bool failed) {
  auto& r = world_.result.requests[request];
  if (r.end_s >= 0)
    return;
  r.end_s = seconds(world_.now);
  r.failed = failed;
  world_.result.makespan_s = std::max(world_.result.makespan_s, r.end_s);
  --world_.open;
  world_.note(failed ? noted::failed : noted::completed, request, r.generated);
  let_followers_come(request);
}

void simulated_clients::refuse(std::uint32_t request) {
  world_.result.requests[request].refused = true;
  --world_.open;
  world_.note(noted::refused, request, 0);
  let_followers_come(request);
}

/// The next request at or behind `from` that waits for no other one.
void simulated_clients::queue_arrival(std::size_t from) {
  const auto& all = world_.load.requests;
  while (from < all.size() && all[from].after)
    ++from;
  if (from < all.size())
    world_.events.push(at_seconds(all[from].arrival_s), event_kind::arrival, static_cast<std::uint32_t>(from));
}

/// The client got its answer, or learned that there is none, and thinks.
void simulated_clients::let_followers_come(std::uint32_t request) {
  for (const auto next : followers_.of(request))
    world_.events.push(world_.now + duration_of(world_.load.requests[next].think_s), event_kind::arrival, next);
}

} // namespace rankwise::sim
