#include "io/zmq/send_queue.hpp"

#include <utility>

namespace rankwise::io {

core::send_result send_queue::room_for(const core::rank_frame& frame) const noexcept {
  if (frame.kind != core::frame_kind::add)
    return frames_.size() >= 4ull * limits_.requests_max ? core::send_result::queue_full_requests
                                                         : core::send_result::queued;
  if (requests_ >= limits_.requests_max)
    return core::send_result::queue_full_requests;
  if (bytes_ + frame.payload.size() > limits_.bytes_max)
    return core::send_result::queue_full_bytes;
  return core::send_result::queued;
}

core::send_result send_queue::push(core::rank_frame frame) {
  const auto result = room_for(frame);
  if (result != core::send_result::queued)
    return result;
  if (frame.kind == core::frame_kind::add)
    ++requests_;
  bytes_ += frame.payload.size();
  frames_.push_back(std::move(frame));
  return result;
}

void send_queue::pop() {
  const auto& frame = frames_.front();
  bytes_ -= frame.payload.size();
  if (frame.kind == core::frame_kind::add)
    --requests_;
  frames_.pop_front();
}

void send_queue::clear() {
  frames_.clear();
  requests_ = 0;
  bytes_ = 0;
}

} // namespace rankwise::io
