#include "io/zmq/engine_hub.hpp"

#include "io/zmq/connection_monitor.hpp"
#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/engine_sockets.hpp"
#include "io/zmq/frame_sender.hpp"
#include "io/zmq/handshakes.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/link_orders.hpp"
#include "io/zmq/output_intake.hpp"
#include "io/zmq/output_receiver.hpp"
#include "io/zmq/rank_links.hpp"
#include "io/zmq/rank_restore.hpp"
#include "io/zmq/registrations.hpp"
#include "io/zmq/sender_loop.hpp"

#include <spdlog/spdlog.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace rankwise::io {

namespace {

template <class Body>
void guarded(const char* thread, Body body) noexcept {
  try {
    body();
  } catch (const std::exception& e) {
    // Without its sockets a node is of no use: end, and let the service manager start it again.
    spdlog::critical("event=hub_thread_failed thread={} cause=\"{}\"", thread, e.what());
    std::terminate();
  }
}

} // namespace

/// The parts of the hub, in an order in which each knows only those before it, and its two threads.
class engine_hub::impl {
 public:
  impl(engine_hub_options options, engine_hub_callbacks callbacks, std::shared_ptr<core::load_board> board)
      : context{std::move(options), std::move(callbacks), {}}, sockets{context}, directory{context.options.pools},
        sender{context, directory, sender_wake}, orders{sender_wake},
        intake{context, directory, sender, std::move(board)}, receiver{context, sockets, directory, orders, intake},
        links{context, sockets, directory, receiver, sender_poll}, hellos{context, sockets, links},
        registered{context, directory, links}, monitor{links, registered, sender}, loop{{sender_poll, sender_wake,
                                                                                         hellos, registered, monitor,
                                                                                         links, orders, sender}} {}
  ~impl() { stop(); }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  void start() {
    running_ = true;
    sender_thread_ = std::thread{[this] { guarded("sender", [this] { loop.run(running_); }); }};
    receiver_thread_ = std::thread{[this] { guarded("receiver", [this] { receiver.run(running_); }); }};
  }

  void stop() noexcept {
    if (!running_.exchange(false))
      return;
    sender_wake.raise();
    receiver.wake();
    sender_thread_.join();
    receiver_thread_.join();
  }

  hub_context context;
  engine_sockets sockets;
  endpoint_directory directory;
  wake_up sender_wake;
  descriptor_poll sender_poll;
  frame_sender sender;
  link_orders orders;
  output_intake intake;
  output_receiver receiver;
  rank_links links;
  handshakes hellos;
  registrations registered;
  connection_monitor monitor;
  sender_loop loop;

 private:
  std::atomic<bool> running_{false};
  std::thread sender_thread_;
  std::thread receiver_thread_;
};

engine_hub::engine_hub(engine_hub_options options, engine_hub_callbacks callbacks,
                       std::shared_ptr<core::load_board> board)
    : impl_(std::make_unique<impl>(std::move(options), std::move(callbacks), std::move(board))) {}

engine_hub::~engine_hub() = default;

void engine_hub::start() {
  impl_->start();
}

void engine_hub::stop() noexcept {
  impl_->stop();
}

const std::string& engine_hub::handshake_endpoint(std::size_t pool) const {
  return impl_->hellos.address(pool);
}

const engine_hub_counters& engine_hub::counters() const noexcept {
  return impl_->context.counters;
}

std::size_t engine_hub::board_slot(core::rank_id rank) const noexcept {
  return impl_->directory.slot_of(rank);
}

std::size_t engine_hub::board_slots(const engine_hub_options& options) noexcept {
  return endpoint_directory::slots_of(options.pools);
}

core::send_result engine_hub::send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame frame) noexcept {
  return impl_->sender.send(rank, epoch, std::move(frame));
}

core::timestamp engine_hub::last_output(core::rank_id rank) const noexcept {
  const auto endpoint = impl_->directory.find(rank);
  return endpoint ? core::timestamp{core::duration{endpoint->last_output_ns.load(std::memory_order_relaxed)}}
                  : core::timestamp{};
}

std::vector<std::string> engine_hub::restore(const std::vector<rank_record>& records) {
  rank_restore restore{impl_->context, impl_->sockets, impl_->directory, impl_->links, impl_->hellos};
  return restore.take_in(records);
}

void engine_hub::give_up(core::rank_id rank, core::rank_epoch epoch, std::string cause) noexcept {
  impl_->orders.give_up(rank, epoch, std::move(cause));
}

void engine_hub::close(core::rank_id rank, core::rank_epoch epoch) noexcept {
  impl_->orders.close(rank, epoch);
}

} // namespace rankwise::io
