#include "io/zmq/output_receiver.hpp"

#include "io/zmq/zmq_message.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace rankwise::io {

void output_receiver::add(const rank_endpoint_ptr& endpoint) {
  {
    const std::lock_guard guard{mutex_};
    added_.push_back(endpoint);
  }
  wake_.raise();
}

void output_receiver::run(const std::atomic<bool>& running) {
  poll_.add(wake_.fd(), &wake_);
  while (running) {
    if (context_.callbacks.may_receive && !context_.callbacks.may_receive()) {
      ++context_.counters.receive_pauses;
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      continue;
    }
    wait_for_outputs();
    std::erase_if(readable_, [this](rank_endpoint* source) { return !read(*source); });
    if (!std::exchange(sources_changed_, false))
      continue;
    wake_.lower();
    drop_closed();
    take_in_added();
  }
  for (auto& source : sources_)
    sockets_.close_output(*source);
}

void output_receiver::wait_for_outputs() {
  for (auto* owner : poll_.wait(readable_.empty() ? 1000 : 0)) {
    if (owner == &wake_) {
      sources_changed_ = true;
      continue;
    }
    auto* source = static_cast<rank_endpoint*>(owner);
    if (std::find(readable_.begin(), readable_.end(), source) == readable_.end())
      readable_.push_back(source);
  }
}

void output_receiver::drop_closed() {
  std::erase_if(sources_, [this](const rank_endpoint_ptr& e) {
    if (!e->closed)
      return false;
    std::erase(readable_, e.get());
    poll_.remove(e->output.get(zmq::sockopt::fd));
    sockets_.close_output(*e);
    return true;
  });
}

void output_receiver::take_in_added() {
  const std::lock_guard guard{mutex_};
  for (auto& endpoint : added_) {
    poll_.add(endpoint->output.get(zmq::sockopt::fd), endpoint.get());
    readable_.push_back(endpoint.get()); // what came before the watch
    sources_.push_back(std::move(endpoint));
  }
  added_.clear();
}

/// True when something was left for another round.
bool output_receiver::read(rank_endpoint& e) {
  for (int i = 0; i < context_.options.frames_per_round_max; ++i) {
    zmq::message_t frame;
    if (!e.output.recv(frame, zmq::recv_flags::dontwait))
      return false;
    const bool multipart = frame.more();
    while (frame.more())
      if (!e.output.recv(frame, zmq::recv_flags::dontwait))
        break;
    ++context_.counters.frames_received;
    context_.counters.bytes_received += frame.size();
    take(e, frame, multipart);
  }
  return true;
}

void output_receiver::take(rank_endpoint& e, const zmq::message_t& frame, bool multipart) {
  if (e.closed) {
    ++context_.counters.frames_of_closed_links;
  } else if (e.given_up) {
    // It is heard again: from its next epoch on. What it says until then is of requests that were taken from it.
    ++context_.counters.frames_of_given_up_links;
    heard_again(e);
  } else if (multipart) {
    context_.counters.count_malformed(wire::sglang::wire_error_kind::trailing_bytes);
  } else {
    intake_.take(e, view(frame));
  }
}

void output_receiver::heard_again(rank_endpoint& e) {
  if (const auto serving = directory_.find(e.id); serving.get() == &e)
    orders_.heard_again(serving);
}

} // namespace rankwise::io
