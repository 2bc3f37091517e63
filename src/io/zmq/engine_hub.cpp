#include "io/zmq/engine_hub.hpp"

#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/peer_filter.hpp"
#include "io/zmq/rank_endpoint.hpp"
#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/output_codec.hpp"
#include "wire/sglang/request_codec.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <thread>

namespace rankwise::io {

namespace {

using endpoint_ptr = std::shared_ptr<rank_endpoint>;
namespace sg = wire::sglang;

// What follows the identity; of several parts the last.
void receive_rest(zmq::socket_t& socket, zmq::message_t& payload) {
  do {
    if (!socket.recv(payload, zmq::recv_flags::dontwait))
      return;
  } while (payload.more());
}

/// Where a message came from; empty over ipc.
std::string peer_address_of(const zmq::message_t& m) {
  const char* address = ::zmq_msg_gets(m.handle(), "Peer-Address");
  return address == nullptr ? "" : address;
}

std::string_view view(const zmq::message_t& m) {
  return {static_cast<const char*>(m.data()), m.size()};
}

} // namespace

class engine_hub::impl {
 public:
  impl(engine_hub_options options, engine_hub_callbacks callbacks, std::shared_ptr<core::load_board> board)
      : options_(std::move(options)), callbacks_(std::move(callbacks)), board_(std::move(board)), context_(1) {
    if (!options_.allowed_peers.empty())
      filter_.emplace(context_, options_.allowed_peers, counters_.peers_refused);
    std::size_t slots = 0;
    for (const auto& pool : options_.pools) {
      slot_base_.push_back(slots);
      slots += pool.ranks_max;
      auto& p = pools_.emplace_back();
      p.next_epoch.resize(pool.ranks_max, 0);
      p.handshake = zmq::socket_t{context_, zmq::socket_type::router};
      p.handshake.set(zmq::sockopt::linger, 0);
      p.handshake.set(zmq::sockopt::router_handover, true);
      guard_access(p.handshake);
      try {
        p.handshake.bind(with_any_port(pool.handshake));
      } catch (const zmq::error_t& e) {
        throw std::runtime_error("cannot bind handshake endpoint " + pool.handshake + " of pool " + pool.name + ": " +
                                 e.what());
      }
      p.endpoint = p.handshake.get(zmq::sockopt::last_endpoint);
    }
    present_.resize(slots);
    wide_pools_ = std::make_unique<std::atomic<bool>[]>(options_.pools.size());
  }

  std::vector<std::string> restore(const std::vector<rank_record>& records) {
    std::vector<std::string> failures;
    for (const auto& record : records) {
      const auto number = record.registration.rank.rank;
      const auto fail = [&](const std::string& why) {
        failures.push_back(record.pool + "/" + std::to_string(number) + ": " + why);
      };
      const auto pool = std::find_if(options_.pools.begin(), options_.pools.end(),
                                     [&](const hub_pool_options& p) { return p.name == record.pool; });
      if (pool == options_.pools.end() || number >= pool->ranks_max) {
        fail(pool == options_.pools.end() ? "there is no such pool any more" : "ranks_max is smaller now");
        continue;
      }
      const core::rank_id id{static_cast<std::uint16_t>(pool - options_.pools.begin()), number};
      auto endpoint = std::make_shared<rank_endpoint>();
      endpoint->id = id;
      endpoint->epoch = record.registration.epoch;
      endpoint->identity = record.identity;
      endpoint->input_address = record.input_address;
      endpoint->output_address = record.output_address;
      endpoint->registered = true;
      endpoint->lost = true; // until it reconnects
      endpoint->registration = record.registration;
      endpoint->registration.kind = link_event_kind::restored;
      endpoint->registration.rank = id;
      endpoint->registration.cause = "known from the state file";
      try {
        open(*endpoint);
      } catch (const zmq::error_t& e) {
        fail("cannot bind " + record.input_address + " and " + record.output_address + ": " + e.what());
        continue;
      }
      pools_[id.pool].next_epoch[id.rank] = record.registration.epoch;
      if (endpoint->registration.data_parallel_size > 1 || id.rank > 0)
        wide_pools_[id.pool].store(true, std::memory_order_relaxed);
      callbacks_.on_link_event(endpoint->registration);
      take_in(std::move(endpoint));
    }
    return failures;
  }

  void start() {
    running_ = true;
    sender_ = std::thread{[this] { guarded("sender", [this] { run_sender(); }); }};
    receiver_ = std::thread{[this] { guarded("receiver", [this] { run_receiver(); }); }};
  }

  void stop() noexcept {
    if (!running_.exchange(false))
      return;
    sender_wake_.raise();
    receiver_wake_.raise();
    sender_.join();
    receiver_.join();
  }

  ~impl() { stop(); }

  // -- called from any thread
  // ------------------------------------------------------------------------------------------

  core::send_result send(core::rank_id id, core::rank_epoch epoch, core::rank_frame frame) {
    const auto endpoint = find(id);
    if (!endpoint)
      return core::send_result::unknown_link;
    bool input_to_read = false;
    {
      const std::lock_guard guard{endpoint->mutex};
      if (endpoint->closed || endpoint->lost || endpoint->epoch.load() != epoch)
        return core::send_result::unknown_link;
      if (endpoint->queue.empty() && transmit(*endpoint, frame)) {
        // Sending may have taken the signal of something that arrived: the sender thread would not hear of it.
        input_to_read = (endpoint->input.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0;
        if (!input_to_read)
          return core::send_result::queued;
      } else if (const auto result = enqueue(*endpoint, std::move(frame)); result != core::send_result::queued) {
        return result;
      }
    }
    if (input_to_read) {
      look_again_.store(true, std::memory_order_relaxed);
    } else {
      const std::lock_guard guard{mutex_};
      if (std::find(dirty_.begin(), dirty_.end(), endpoint) == dirty_.end())
        dirty_.push_back(endpoint);
    }
    sender_wake_.raise();
    return core::send_result::queued;
  }

  core::timestamp last_output(core::rank_id id) const {
    const auto endpoint = find(id);
    return endpoint ? core::timestamp{core::duration{endpoint->last_output_ns.load(std::memory_order_relaxed)}}
                    : core::timestamp{};
  }

  void give_up(core::rank_id id, core::rank_epoch epoch, std::string cause) {
    {
      const std::lock_guard guard{mutex_};
      to_give_up_.push_back({id, epoch, std::move(cause)});
    }
    sender_wake_.raise();
  }

  void close(core::rank_id id, core::rank_epoch epoch) {
    {
      const std::lock_guard guard{mutex_};
      to_close_.emplace_back(id, epoch);
    }
    sender_wake_.raise();
  }

  [[nodiscard]] const std::string& handshake_endpoint(std::size_t pool) const { return pools_.at(pool).endpoint; }
  [[nodiscard]] const engine_hub_counters& counters() const { return counters_; }
  [[nodiscard]] std::size_t slot_of(core::rank_id id) const { return slot_base_.at(id.pool) + id.rank; }

 private:
  struct pool_sockets {
    zmq::socket_t handshake;
    std::string endpoint;
    std::vector<core::rank_epoch> next_epoch; // by rank: the newest one given
  };

  void guard_access(zmq::socket_t& socket) {
    if (filter_)
      socket.set(zmq::sockopt::zap_domain, peer_filter::domain);
  }

  static std::string with_any_port(const std::string& endpoint) {
    if (endpoint.starts_with("tcp://") && endpoint.ends_with(":0"))
      return endpoint.substr(0, endpoint.size() - 1) + "*";
    return endpoint;
  }

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

  // Under the endpoint's mutex. Aborts and control frames are small and must get through: the caps are for requests.
  core::send_result enqueue(rank_endpoint& e, core::rank_frame frame) {
    auto result = core::send_result::queued;
    if (frame.kind != core::frame_kind::add) {
      if (e.queue.size() >= 4ull * options_.send_queue_requests_max)
        result = core::send_result::queue_full_requests;
    } else if (e.queued_requests >= options_.send_queue_requests_max) {
      result = core::send_result::queue_full_requests;
    } else if (e.queued_bytes + frame.payload.size() > options_.send_queue_bytes_max) {
      result = core::send_result::queue_full_bytes;
    } else {
      ++e.queued_requests;
    }
    if (result != core::send_result::queued) {
      ++counters_.send_queue_full;
      return result;
    }
    e.queued_bytes += frame.payload.size();
    e.queue.push_back(std::move(frame));
    return result;
  }

  [[nodiscard]] endpoint_ptr find(core::rank_id id) const {
    if (id.pool >= slot_base_.size() || id.rank >= options_.pools[id.pool].ranks_max)
      return nullptr;
    const std::lock_guard guard{mutex_};
    return present_[slot_of(id)];
  }

  // -- sender thread: handshakes, registrations, link events, sends
  // -------------------------------------------------------

  void run_sender() {
    sender_poll_.add(sender_wake_.fd(), &sender_wake_);
    for (auto& pool : pools_)
      sender_poll_.add(pool.handshake.get(zmq::sockopt::fd), &pool);
    bool backlog = false;
    bool more = true;
    while (running_) {
      for (const auto* owner : sender_poll_.wait(more ? 0 : backlog ? 2 : 1000)) {
        if (owner == &sender_wake_)
          sender_wake_.lower();
        else
          more = true;
      }
      // What happens to these sockets is rare (a rank comes or goes): then all of them are looked at.
      if (look_again_.exchange(false) || more)
        more = read_all();
      carry_out_wishes();
      backlog = send_queued();
      more = more || look_again_.exchange(false);
    }
    for (auto& endpoint : live_)
      shut(*endpoint);
    live_.clear();
  }

  // True when something was left for another round.
  bool read_all() {
    bool more = false;
    const auto endpoints = live_; // a HELLO changes it
    for (const auto& endpoint : endpoints) {
      more = read_registration(*endpoint) || more;
      read_monitor(*endpoint);
    }
    for (std::uint16_t pool = 0; pool < pools_.size(); ++pool)
      more = read_handshake(pool) || more;
    return more;
  }

  bool read_handshake(std::uint16_t pool) {
    auto& p = pools_[pool];
    for (int i = 0; i < options_.frames_per_round_max; ++i) {
      zmq::message_t identity;
      zmq::message_t payload;
      if (!p.handshake.recv(identity, zmq::recv_flags::dontwait))
        return false;
      if (!identity.more())
        continue;
      receive_rest(p.handshake, payload);
      const auto rank = sg::decode_identity(view(identity));
      const auto message = sg::decode_handshake(view(payload));
      if (!rank || !message) {
        const auto& error = !rank ? rank.error() : message.error();
        ++counters_.malformed[static_cast<std::size_t>(error.kind)];
        spdlog::warn("event=handshake_malformed pool={} kind={} field={}", options_.pools[pool].name,
                     sg::to_string(error.kind), error.field);
        continue;
      }
      if (*rank >= options_.pools[pool].ranks_max) {
        spdlog::error("event=rank_refused pool={} rank={} cause=\"ranks_max is {}\"", options_.pools[pool].name, *rank,
                      options_.pools[pool].ranks_max);
        continue;
      }
      if (message->status == sg::handshake_status::hello)
        welcome(pool, *rank, identity, peer_address_of(payload));
    }
    return true;
  }

  void welcome(std::uint16_t pool, std::uint16_t rank, zmq::message_t& identity, std::string peer) {
    const core::rank_id id{pool, rank};
    const auto epoch = ++pools_[pool].next_epoch[rank];
    auto endpoint = std::make_shared<rank_endpoint>();
    endpoint->id = id;
    endpoint->epoch = epoch;
    endpoint->identity = std::string{view(identity)};
    endpoint->peer_address = std::move(peer);
    try {
      open(*endpoint);
    } catch (const zmq::error_t& e) {
      spdlog::error("event=rank_refused pool={} rank={} cause=\"cannot bind its endpoints: {}\"",
                    options_.pools[pool].name, rank, e.what());
      return;
    }
    auto cause = cause_of_hello(*endpoint);
    retire(id);
    take_in(endpoint);

    link_event event;
    event.kind = link_event_kind::hello;
    event.rank = id;
    event.epoch = epoch;
    event.cause = std::move(cause);
    callbacks_.on_link_event(std::move(event));

    const auto& host = options_.pools[pool].advertise_host;
    const auto init =
        sg::encode_init({advertised(endpoint->input_address, host), advertised(endpoint->output_address, host)});
    auto& handshake = pools_[pool].handshake;
    if (handshake.send(identity, zmq::send_flags::sndmore | zmq::send_flags::dontwait)) [[maybe_unused]]
      const auto sent = handshake.send(zmq::buffer(init), zmq::send_flags::dontwait);
  }

  /// Two engines with one rank number displace each other for ever: their operator must see a misconfigured launcher.
  std::string cause_of_hello(const rank_endpoint& arriving) const {
    const auto of = [](const std::string& address) { return address.empty() ? "" : " from " + address; };
    auto cause = "HELLO" + of(arriving.peer_address);
    const auto found =
        std::find_if(live_.begin(), live_.end(), [&](const endpoint_ptr& e) { return e->id == arriving.id; });
    if (found == live_.end() || !(*found)->registered || (*found)->peer_fd < 0)
      return cause;
    cause += "; its rank number was in use by epoch " + std::to_string((*found)->epoch.load()) +
             of((*found)->peer_address) + ", whose link was alive: do two engines have one number?";
    spdlog::warn("event=rank_number_in_use pool={} rank={} epoch={} cause={:?}", options_.pools[arriving.id.pool].name,
                 arriving.id.rank, arriving.epoch.load(), cause);
    return cause;
  }

  /// An endpoint with both sockets bound is in service from here on.
  void take_in(endpoint_ptr endpoint) {
    sender_poll_.add(endpoint->input.get(zmq::sockopt::fd), endpoint.get());
    sender_poll_.add(endpoint->monitor.get(zmq::sockopt::fd), endpoint.get());
    {
      const std::lock_guard guard{mutex_};
      present_[slot_of(endpoint->id)] = endpoint; // from here on others may send on it
      arriving_.push_back(endpoint);
    }
    live_.push_back(std::move(endpoint));
    receiver_wake_.raise();
  }

  void tell_records() {
    if (!callbacks_.on_records)
      return;
    std::vector<rank_record> records;
    for (const auto& e : live_) {
      if (!e->registered)
        continue;
      auto& record = records.emplace_back(rank_record{options_.pools[e->id.pool].name, e->identity, e->input_address,
                                                      e->output_address, e->registration});
      record.registration.epoch = e->epoch.load();
    }
    callbacks_.on_records(std::move(records));
  }

  /// A bound tcp address as ranks of other machines reach it.
  static std::string advertised(const std::string& address, const std::string& host) {
    if (host.empty() || !address.starts_with("tcp://"))
      return address;
    return "tcp://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") +
           address.substr(address.rfind(':'));
  }

  // Binds both sockets of an incarnation, under addresses of its own or those that it had.
  void open(rank_endpoint& e) {
    const auto prepare = [&](zmq::socket_t& socket) {
      socket.set(zmq::sockopt::linger, 0);
      socket.set(zmq::sockopt::heartbeat_ivl, options_.heartbeat_interval_ms);
      socket.set(zmq::sockopt::heartbeat_timeout, options_.heartbeat_timeout_ms);
      guard_access(socket);
    };
    e.input = zmq::socket_t{context_, zmq::socket_type::router};
    prepare(e.input);
    e.input.set(zmq::sockopt::router_mandatory, true);
    e.input.set(zmq::sockopt::router_handover, true);
    e.input.set(zmq::sockopt::sndhwm, 1000);
    const auto name = std::to_string(options_.boot) + "-" + std::to_string(e.id.pool) + "-" +
                      std::to_string(e.id.rank) + "-" + std::to_string(e.epoch.load());
    const auto monitor_address = "inproc://monitor-" + name;
    if (::zmq_socket_monitor(e.input.handle(), monitor_address.c_str(),
                             ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0)
      throw zmq::error_t{};
    e.monitor = zmq::socket_t{context_, zmq::socket_type::pair};
    e.monitor.set(zmq::sockopt::linger, 0);
    e.monitor.connect(monitor_address);
    e.output = zmq::socket_t{context_, zmq::socket_type::pull};
    prepare(e.output);
    e.output.set(zmq::sockopt::rcvhwm, 1000);
    const auto bind = [&](zmq::socket_t& socket, const char* suffix, const std::string& old_address) {
      if (!old_address.empty())
        socket.bind(old_address);
      else if (options_.pools[e.id.pool].data_over_ipc)
        socket.bind("ipc://" + options_.ipc_folder + "/" + name + suffix);
      else
        socket.bind("tcp://" + host_of(pools_[e.id.pool].endpoint) + ":*");
      return socket.get(zmq::sockopt::last_endpoint);
    };
    e.input_address = bind(e.input, ".in", e.input_address);
    e.output_address = bind(e.output, ".out", e.output_address);
  }

  static std::string host_of(const std::string& endpoint) {
    const std::string_view prefix = "tcp://";
    const auto colon = endpoint.rfind(':');
    return endpoint.substr(prefix.size(), colon - prefix.size());
  }

  // Takes the present incarnation of a rank out of service.
  void retire(core::rank_id id) {
    const auto found = std::find_if(live_.begin(), live_.end(), [&](const endpoint_ptr& e) { return e->id == id; });
    if (found == live_.end())
      return;
    auto endpoint = *found;
    live_.erase(found);
    shut(*endpoint);
    {
      const std::lock_guard guard{mutex_};
      if (present_[slot_of(id)] == endpoint)
        present_[slot_of(id)].reset();
    }
    receiver_wake_.raise();
  }

  void shut(rank_endpoint& e) {
    const std::lock_guard guard{e.mutex};
    e.closed = true; // the receiver closes `output` when it sees this
    sender_poll_.remove(e.input.get(zmq::sockopt::fd));
    sender_poll_.remove(e.monitor.get(zmq::sockopt::fd));
    ::zmq_socket_monitor(e.input.handle(), nullptr, 0);
    e.monitor.close();
    // What is on the way in parts goes out whole, or at least not before this time is over: libzmq 4.3.4 aborts the
    // process when a peer disconnects at the moment in which a socket without linger cuts off a message that was half
    // sent (session_base.cpp, clean_pipes).
    e.input.set(zmq::sockopt::linger, 100);
    e.input.close();
    if (options_.pools[e.id.pool].data_over_ipc)
      std::remove(e.input_address.substr(6).c_str());
  }

  // What others asked of the sender thread.
  void carry_out_wishes() {
    std::vector<std::pair<core::rank_id, core::rank_epoch>> closes;
    std::vector<give_up_order> give_ups;
    std::vector<endpoint_ptr> heard_again;
    {
      const std::lock_guard guard{mutex_};
      closes.swap(to_close_);
      give_ups.swap(to_give_up_);
      heard_again.swap(heard_again_);
    }
    for (const auto& [id, epoch] : closes) {
      if (const auto endpoint = find(id); endpoint && endpoint->epoch.load() == epoch) {
        retire(id);
        tell_records();
      }
    }
    for (auto& order : give_ups) {
      if (const auto endpoint = find(order.rank); endpoint && endpoint->epoch.load() == order.epoch) {
        endpoint->given_up = true;
        report_lost(*endpoint, std::move(order.cause));
      }
    }
    for (const auto& endpoint : heard_again)
      if (!endpoint->closed && endpoint->peer_fd >= 0)
        come_back(*endpoint);
  }

  void read_monitor(rank_endpoint& e) {
    for (;;) {
      zmq::message_t event;
      zmq::message_t address;
      if (!e.monitor.recv(event, zmq::recv_flags::dontwait))
        return;
      if (event.more()) [[maybe_unused]]
        const auto got = e.monitor.recv(address, zmq::recv_flags::dontwait);
      if (event.size() < 6)
        continue;
      std::uint16_t kind = 0;
      std::int32_t fd = -1;
      std::memcpy(&kind, event.data(), sizeof kind);
      std::memcpy(&fd, static_cast<const char*>(event.data()) + sizeof kind, sizeof fd);
      if (kind == ZMQ_EVENT_ACCEPTED) {
        if (fd != e.peer_fd) // which may have registered before we hear of it here
          e.other_fds.push_back(fd);
      } else if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) { // names no descriptor
        if (e.peer_fd < 0 && e.registered && !e.other_fds.empty()) {
          e.peer_fd = e.other_fds.back();
          e.other_fds.pop_back();
          come_back(e);
        }
      } else if (kind == ZMQ_EVENT_DISCONNECTED) {
        if (e.peer_fd < 0)
          read_registration(e); // it may have come and gone since the last look
        if (std::erase(e.other_fds, fd) != 0 || fd != e.peer_fd)
          continue; // a stranger's connection says nothing about the rank
        e.peer_fd = -1;
        report_lost(e, "its connection was lost");
        // The rank's next connection can be there before the end of the old one is told.
        if (!e.other_fds.empty() && is_reachable(e)) {
          e.peer_fd = e.other_fds.back();
          e.other_fds.pop_back();
          come_back(e);
        }
      }
    }
  }

  // Whether the rank's identity is connected, by a frame that asks nothing of it.
  bool is_reachable(rank_endpoint& e) {
    const std::lock_guard guard{e.mutex};
    return !e.closed && transmit(e, {core::frame_kind::abort, sg::encode_abort({}), {}});
  }

  void report_lost(rank_endpoint& e, std::string cause) {
    {
      // Whatever waits was meant for the process that is gone; its requests move or end.
      const std::lock_guard guard{e.mutex};
      if (std::exchange(e.lost, true))
        return;
      e.queue.clear();
      e.queued_requests = 0;
      e.queued_bytes = 0;
    }
    link_event event;
    event.kind = link_event_kind::lost;
    event.rank = e.id;
    event.epoch = e.epoch.load();
    event.cause = std::move(cause);
    callbacks_.on_link_event(std::move(event));
  }

  void come_back(rank_endpoint& e) {
    {
      const std::lock_guard guard{e.mutex};
      if (!std::exchange(e.lost, false))
        return;
      e.epoch = ++pools_[e.id.pool].next_epoch[e.id.rank];
      e.given_up = false;
    }
    link_event event;
    event.kind = link_event_kind::reconnected;
    event.rank = e.id;
    event.epoch = e.epoch.load();
    event.cause = "reconnected without HELLO";
    callbacks_.on_link_event(std::move(event));
    tell_records();
  }

  bool read_registration(rank_endpoint& e) {
    for (int i = 0; i < options_.frames_per_round_max; ++i) {
      zmq::message_t identity;
      zmq::message_t payload;
      {
        const std::lock_guard guard{e.mutex};
        if (e.closed || !e.input.recv(identity, zmq::recv_flags::dontwait))
          return false;
        if (!identity.more())
          continue;
        receive_rest(e.input, payload);
      }
      link_event event;
      event.rank = e.id;
      event.epoch = e.epoch.load();
      const auto registration = sg::decode_registration(view(payload));
      if (view(identity) != e.identity) {
        event.kind = link_event_kind::refused;
        event.cause = "another identity connected to its endpoint";
      } else if (!registration) {
        ++counters_.malformed[static_cast<std::size_t>(registration.error().kind)];
        event.kind = link_event_kind::refused;
        event.cause =
            "registration: " + std::string{sg::to_string(registration.error().kind)} + " " + registration.error().field;
      } else {
        const int fd = payload.get(ZMQ_SRCFD);
        if (e.registered && e.peer_fd != fd) {
          report_lost(e, "it registered again");
          come_back(e);
          event.epoch = e.epoch.load();
        }
        e.registered = true;
        e.peer_fd = fd;
        std::erase(e.other_fds, fd);
        event.kind = link_event_kind::registered;
        event.kv_capacity = registration->kv_cache_size_tokens;
        event.max_running = registration->max_num_seqs;
        event.chunk_tokens = registration->max_num_batched_tokens;
        event.data_parallel_size = registration->data_parallel_size;
        event.max_model_len = registration->max_model_len;
        event.engine_version = registration->engine_version;
        event.layouts = registration->positional_layouts;
        event.model_name = registration->instance_id;
        if (registration->data_parallel_size > 1 || e.id.rank > 0)
          wide_pools_[e.id.pool].store(true, std::memory_order_relaxed);
        e.registration = event;
      }
      const bool registered = event.kind == link_event_kind::registered;
      callbacks_.on_link_event(std::move(event));
      if (registered)
        tell_records();
    }
    return true;
  }

  // Sends what is queued without ever waiting. True when something is left for a later round.
  bool send_queued() {
    {
      const std::lock_guard guard{mutex_};
      for (auto& endpoint : dirty_)
        if (std::find(sending_.begin(), sending_.end(), endpoint) == sending_.end())
          sending_.push_back(std::move(endpoint));
      dirty_.clear();
    }
    std::erase_if(sending_, [this](const endpoint_ptr& e) { return drain(*e); });
    return !sending_.empty();
  }

  bool drain(rank_endpoint& e) {
    const std::lock_guard guard{e.mutex};
    if (e.closed)
      return true;
    while (!e.queue.empty()) {
      const auto& frame = e.queue.front();
      if (!transmit(e, frame))
        return false;
      e.queued_bytes -= frame.payload.size();
      if (frame.kind == core::frame_kind::add)
        --e.queued_requests;
      e.queue.pop_front();
    }
    if ((e.input.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0)
      look_again_.store(true, std::memory_order_relaxed);
    return true;
  }

  // Under the endpoint's mutex. False: not now.
  bool transmit(rank_endpoint& e, const core::rank_frame& frame) {
    const auto type = static_cast<std::uint8_t>(frame.kind);
    constexpr auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
    try {
      // With ROUTER_MANDATORY the first part fails when the peer is not there or its pipe is full; the others follow
      // it.
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
    if (callbacks_.on_dispatched && frame.accepted_at != core::timestamp{})
      callbacks_.on_dispatched(callbacks_.now() - frame.accepted_at);
    ++counters_.frames_sent;
    counters_.bytes_sent += frame.payload.size();
    return true;
  }

  // -- receiver thread
  // ---------------------------------------------------------------------------------------------------

  void run_receiver() {
    descriptor_poll poll;
    poll.add(receiver_wake_.fd(), &receiver_wake_);
    std::vector<endpoint_ptr> sources;
    std::vector<rank_endpoint*> readable; // not yet read until EAGAIN
    while (running_) {
      if (callbacks_.may_receive && !callbacks_.may_receive()) {
        ++counters_.receive_pauses;
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
        continue;
      }
      bool changed = false;
      for (auto* owner : poll.wait(readable.empty() ? 1000 : 0)) {
        if (owner == &receiver_wake_) {
          changed = true;
          continue;
        }
        auto* source = static_cast<rank_endpoint*>(owner);
        if (std::find(readable.begin(), readable.end(), source) == readable.end())
          readable.push_back(source);
      }
      std::erase_if(readable, [this](rank_endpoint* source) { return !read_outputs(*source); });
      if (!changed)
        continue;
      receiver_wake_.lower();
      std::erase_if(sources, [&](const endpoint_ptr& e) {
        if (!e->closed)
          return false;
        std::erase(readable, e.get());
        poll.remove(e->output.get(zmq::sockopt::fd));
        end_output(*e);
        return true;
      });
      const std::lock_guard guard{mutex_};
      for (auto& endpoint : arriving_) {
        poll.add(endpoint->output.get(zmq::sockopt::fd), endpoint.get());
        readable.push_back(endpoint.get()); // what came before the watch
        sources.push_back(std::move(endpoint));
      }
      arriving_.clear();
    }
    for (auto& source : sources)
      end_output(*source);
  }

  void end_output(rank_endpoint& e) {
    e.output.close();
    if (options_.pools[e.id.pool].data_over_ipc)
      std::remove(e.output_address.substr(6).c_str());
  }

  // True when something was left for another round.
  bool read_outputs(rank_endpoint& e) {
    for (int i = 0; i < options_.frames_per_round_max; ++i) {
      zmq::message_t frame;
      if (!e.output.recv(frame, zmq::recv_flags::dontwait))
        return false;
      const bool multipart = frame.more();
      while (frame.more())
        if (!e.output.recv(frame, zmq::recv_flags::dontwait))
          break;
      ++counters_.frames_received;
      counters_.bytes_received += frame.size();
      if (e.closed) {
        ++counters_.frames_of_closed_links;
        continue;
      }
      if (e.given_up) {
        // It is heard again: from its next epoch on. What it says until then is of requests that were taken from it.
        ++counters_.frames_of_given_up_links;
        bring_back(e);
        continue;
      }
      if (multipart) {
        ++counters_.malformed[static_cast<std::size_t>(sg::wire_error_kind::trailing_bytes)];
        continue;
      }
      take(e, view(frame));
    }
    return true;
  }

  void bring_back(rank_endpoint& e) {
    const auto endpoint = find(e.id);
    if (endpoint.get() != &e)
      return;
    {
      const std::lock_guard guard{mutex_};
      if (std::find(heard_again_.begin(), heard_again_.end(), endpoint) != heard_again_.end())
        return;
      heard_again_.push_back(endpoint);
    }
    sender_wake_.raise();
  }

  void abort_foreign(rank_endpoint& e, const std::vector<std::string>& rids) {
    const auto sent = send(e.id, e.epoch.load(), {core::frame_kind::abort, sg::encode_abort(rids), {}});
    if (sent == core::send_result::queued)
      counters_.foreign_aborts += rids.size();
    else
      e.foreign.forget(rids); // it has not reconnected yet: the next output asks again
  }

  void take(rank_endpoint& e, std::string_view frame) {
    auto output = sg::decode_output(frame);
    if (!output) {
      ++counters_.malformed[static_cast<std::size_t>(output.error().kind)];
      return;
    }
    const auto now = callbacks_.now();
    e.last_output_ns.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    if (std::holds_alternative<sg::engine_dead>(*output)) {
      link_event event;
      event.kind = link_event_kind::lost;
      event.rank = e.id;
      event.epoch = e.epoch.load();
      event.cause = "ENGINE_CORE_DEAD";
      callbacks_.on_link_event(std::move(event));
      return;
    }
    if (auto* tokens = std::get_if<sg::token_output>(&*output)) {
      take_report(e, tokens->load, tokens->load_malformed, now);
      take_tokens(e, *tokens, now);
    } else if (auto* embeddings = std::get_if<sg::embedding_output>(&*output)) {
      take_report(e, embeddings->load, false, now);
    }
  }

  // The load path: a store into the board and, at most, a ring. Nothing here blocks, throws or allocates.
  void take_report(rank_endpoint& e, const std::optional<sg::load_tail>& load, bool malformed,
                   core::timestamp now) noexcept {
    if (malformed) {
      ++counters_.reports_malformed;
      return;
    }
    if (!load) {
      ++counters_.reports_absent;
      return;
    }
    ++counters_.reports;
    core::load_report report;
    report.rank = e.id;
    report.epoch = e.epoch.load(std::memory_order_relaxed);
    report.sequence = ++e.report_sequence;
    report.received_at = now;
    report.num_running = load->num_running;
    report.num_waiting = load->num_waiting;
    report.kv_used_tokens = load->kv_used_tokens;
    report.kv_total_tokens = load->kv_total_tokens;
    const auto slot = slot_base_[e.id.pool] + e.id.rank;
    if (!wide_pools_[e.id.pool].load(std::memory_order_relaxed))
      board_->store(slot, report); // nothing to choose: shown, not forwarded
    else if (board_->publish(slot, report))
      callbacks_.on_load_report();
  }

  void take_tokens(rank_endpoint& e, sg::token_output& tokens, core::timestamp now) {
    if (tokens.items.empty())
      return;
    core::output_batch batch;
    batch.rank = e.id;
    batch.epoch = e.epoch.load(std::memory_order_relaxed);
    batch.received_at = now;
    batch.tokens = std::move(tokens.tokens);
    batch.items.reserve(tokens.items.size());
    std::vector<std::string> foreign;
    for (auto& from : tokens.items) {
      const auto rid = sg::parse_engine_rid(from.rid);
      if (!rid) {
        ++counters_.unknown_rids;
        continue;
      }
      if (rid->boot != options_.boot) {
        ++counters_.foreign_outputs;
        if (from.finish != core::finish_reason::none)
          e.foreign.ended(from.rid);
        else if (e.foreign.heard(from.rid, now, options_.foreign_requests_max))
          foreign.emplace_back(from.rid);
        continue;
      }
      core::output_item item;
      item.handle = rid->handle;
      item.attempt = rid->attempt;
      item.token_offset = from.token_offset;
      item.token_count = from.token_count;
      item.finish = from.finish;
      item.prompt_tokens = from.prompt_tokens;
      item.completion_tokens = from.completion_tokens;
      item.cached_tokens = from.cached_tokens;
      item.finish_status = from.finish_status;
      item.matched_token = from.matched_token;
      const auto keep = [&](std::string& text) {
        if (text.empty())
          return core::stream_event::no_index;
        batch.texts.push_back(std::move(text));
        return static_cast<std::uint32_t>(batch.texts.size() - 1);
      };
      item.finish_text = keep(from.finish_message);
      item.matched_string = keep(from.matched_string);
      batch.items.push_back(item);
    }
    if (!foreign.empty())
      abort_foreign(e, foreign);
    if (!batch.items.empty())
      callbacks_.on_outputs(std::move(batch));
  }

  engine_hub_options options_;
  engine_hub_callbacks callbacks_;
  std::shared_ptr<core::load_board> board_;
  engine_hub_counters counters_;
  zmq::context_t context_;
  std::optional<peer_filter> filter_;
  std::vector<std::size_t> slot_base_; // by pool
  std::vector<pool_sockets> pools_;
  std::unique_ptr<std::atomic<bool>[]> wide_pools_; // by pool: more than one rank
  std::vector<endpoint_ptr> live_;                  // sender thread
  std::vector<endpoint_ptr> sending_;               // sender thread: with something queued

  struct give_up_order {
    core::rank_id rank;
    core::rank_epoch epoch = 0;
    std::string cause;
  };

  mutable std::mutex mutex_;           // guards the seven below
  std::vector<endpoint_ptr> present_;  // by slot
  std::vector<endpoint_ptr> arriving_; // for the receiver to poll
  std::vector<endpoint_ptr> dirty_;    // with something new to send
  std::vector<std::pair<core::rank_id, core::rank_epoch>> to_close_;
  std::vector<give_up_order> to_give_up_;
  std::vector<endpoint_ptr> heard_again_; // of those given up

  descriptor_poll sender_poll_;
  std::atomic<bool> look_again_{false}; // the sender thread has to read its sockets, signalled or not
  wake_up sender_wake_;
  wake_up receiver_wake_;
  std::atomic<bool> running_{false};
  std::thread sender_;
  std::thread receiver_;
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
  return impl_->handshake_endpoint(pool);
}

const engine_hub_counters& engine_hub::counters() const noexcept {
  return impl_->counters();
}

std::size_t engine_hub::board_slot(core::rank_id rank) const noexcept {
  return impl_->slot_of(rank);
}

std::size_t engine_hub::board_slots(const engine_hub_options& options) noexcept {
  std::size_t slots = 0;
  for (const auto& pool : options.pools)
    slots += pool.ranks_max;
  return slots;
}

core::send_result engine_hub::send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame frame) noexcept {
  return impl_->send(rank, epoch, std::move(frame));
}

core::timestamp engine_hub::last_output(core::rank_id rank) const noexcept {
  return impl_->last_output(rank);
}

std::vector<std::string> engine_hub::restore(const std::vector<rank_record>& records) {
  return impl_->restore(records);
}

void engine_hub::give_up(core::rank_id rank, core::rank_epoch epoch, std::string cause) noexcept {
  impl_->give_up(rank, epoch, std::move(cause));
}

void engine_hub::close(core::rank_id rank, core::rank_epoch epoch) noexcept {
  impl_->close(rank, epoch);
}

} // namespace rankwise::io
