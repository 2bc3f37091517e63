#include "io/zmq/frame_sender.hpp"

#include <algorithm>

namespace rankwise::io {

core::send_result frame_sender::send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame frame) {
  auto endpoint = directory_.find(rank);
  if (!endpoint)
    return core::send_result::unknown_link;
  bool input_to_read = false;
  {
    const std::lock_guard guard{endpoint->mutex};
    if (endpoint->closed || endpoint->lost || endpoint->epoch.load() != epoch)
      return core::send_result::unknown_link;
    if (endpoint->queue.empty() && transmit(*endpoint, frame)) {
      // Sending may have taken the signal of something that arrived: the sender thread would not hear of it.
      input_to_read = has_input(*endpoint);
      if (!input_to_read)
        return core::send_result::queued;
    } else if (const auto result = endpoint->queue.push(std::move(frame)); result != core::send_result::queued) {
      ++context_.counters.send_queue_full;
      return result;
    }
  }
  if (input_to_read)
    input_unsignalled_.store(true, std::memory_order_relaxed);
  else
    leave_to_sender_thread(std::move(endpoint));
  sender_thread_.raise();
  return core::send_result::queued;
}

void frame_sender::leave_to_sender_thread(rank_endpoint_ptr endpoint) {
  const std::lock_guard guard{mutex_};
  if (std::find(newly_queued_.begin(), newly_queued_.end(), endpoint) == newly_queued_.end())
    newly_queued_.push_back(std::move(endpoint));
}

bool frame_sender::send_queued() {
  {
    const std::lock_guard guard{mutex_};
    for (auto& endpoint : newly_queued_)
      if (std::find(sending_.begin(), sending_.end(), endpoint) == sending_.end())
        sending_.push_back(std::move(endpoint));
    newly_queued_.clear();
  }
  std::erase_if(sending_, [this](const rank_endpoint_ptr& e) { return send_queue_of(*e); });
  return !sending_.empty();
}

/// True when nothing is left to send to the endpoint.
bool frame_sender::send_queue_of(rank_endpoint& e) {
  const std::lock_guard guard{e.mutex};
  if (e.closed)
    return true;
  while (!e.queue.empty()) {
    if (!transmit(e, e.queue.front()))
      return false;
    e.queue.pop();
  }
  if (has_input(e))
    input_unsignalled_.store(true, std::memory_order_relaxed);
  return true;
}

bool frame_sender::has_input(rank_endpoint& e) {
  return (e.input.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0;
}

bool frame_sender::transmit(rank_endpoint& e, const core::rank_frame& frame) {
  const auto type = static_cast<std::uint8_t>(frame.kind);
  constexpr auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  try {
    // With ROUTER_MANDATORY the first part fails when the peer is not there or its pipe is full; the others follow it.
    if (!e.input.send(zmq::buffer(e.identity), more))
      return false;
    if (!e.input.send(zmq::buffer(&type, 1), more) ||
        !e.input.send(zmq::buffer(frame.payload), zmq::send_flags::dontwait))
      return true;
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH)
      return false;
    throw;
  }
  const auto& callbacks = context_.callbacks;
  if (callbacks.on_dispatched && frame.accepted_at != core::timestamp{})
    callbacks.on_dispatched(callbacks.now() - frame.accepted_at);
  ++context_.counters.frames_sent;
  context_.counters.bytes_sent += frame.payload.size();
  return true;
}

} // namespace rankwise::io
