#include "sim/pool/waiting_requests.hpp"

#include <algorithm>

namespace rankwise::sim {

namespace {

std::uint32_t request_of(const core::place_order& order) {
  return static_cast<std::uint32_t>(order.handle - 1);
}

} // namespace

void waiting_requests::enter(std::uint32_t request) {
  auto& front = world_.front_end_of(request);
  if (front.held.size() == 0 && placement_.place(request, true))
    return;
  core::place_order order;
  order.handle = request + 1;
  const auto& controller = *front.controllers[world_.first_pool()];
  const auto by = controller.waiting_order(placement_.leg_of(request, true).wanted);
  const auto ranks_up = controller.ranks_up();
  if (!front.held.enter(order, world_.now, by, ranks_up)) {
    if (front.held.size() == 0) {
      placement_.place_or_refuse(request);
      return;
    }
    front.held.squeeze_in(order, world_.now, by, ranks_up);
    placement_.place_or_refuse(request_of(front.held.take(world_.now)));
  }
  place_next(front);
}

void waiting_requests::place_next(front_end& front) {
  world_.result.held_most = std::max<std::uint64_t>(world_.result.held_most, front.held.size());
  while (const auto* next = front.held.next(world_.now)) {
    const auto request = request_of(*next);
    if (!placement_.place(request, true))
      return;
    front.held.leave(request + 1);
  }
}

void waiting_requests::tick() {
  for (const auto& front : world_.front_ends) {
    for (const auto& order : front->held.expired(world_.now))
      placement_.place_or_refuse(request_of(order));
    place_next(*front);
  }
}

} // namespace rankwise::sim
