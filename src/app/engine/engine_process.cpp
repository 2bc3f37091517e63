#include "app/engine/engine_command.hpp"
#include "app/engine/engine_rank.hpp"
#include "sim/lockstep_group.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <unordered_map>

namespace rankwise::app {

namespace {

core::timestamp now() {
  return std::chrono::steady_clock::now();
}

/// A file descriptor that is closed with its owner.
class descriptor {
 public:
  explicit descriptor(int fd) : fd_(fd) {}
  ~descriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

descriptor stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Wakes the poll at a point of the steady clock, which on Linux is CLOCK_MONOTONIC; zmq::poll itself knows
/// milliseconds only.
void set_alarm(const descriptor& timer, core::timestamp at) {
  const auto nanoseconds = std::max<std::int64_t>(at.time_since_epoch().count(), 1);
  itimerspec when{};
  when.it_value.tv_sec = nanoseconds / 1'000'000'000;
  when.it_value.tv_nsec = nanoseconds % 1'000'000'000;
  timerfd_settime(timer.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

class engine_process {
 public:
  explicit engine_process(const engine_options& options)
      : options_(options), signals_(stop_signals()),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {}

  int run();

 private:
  struct asked_kv {
    std::size_t rank = 0;
    std::string rid;
    core::timestamp until; ///< the model has given up by then
  };

  bool dial();
  bool join(engine_rank& rank);
  void poll_once();
  void build_poll_set();
  void receive_kv_answers(zmq::socket_t& socket);
  void advance();
  void ask_for_kv(std::size_t rank);
  void forget_old_questions();
  [[nodiscard]] std::optional<core::timestamp> next_event_time() const;
  void crash_if_asked();
  [[nodiscard]] bool all_joined() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const engine_rank& rank) { return rank.joined(); });
  }
  void fail(int code, const std::string& why) {
    std::fprintf(stderr, "rankwise engine: %s\n", why.c_str());
    exit_code_ = code;
  }

  const engine_options& options_;
  descriptor signals_;
  descriptor timer_;
  zmq::context_t context_{1};
  std::vector<engine_rank> ranks_;
  std::optional<sim::lockstep_group> group_;
  std::vector<sim::rank_outputs> group_outputs_;
  engine_kv_client kv_client_{context_};
  std::unordered_map<std::uint64_t, asked_kv> asked_;
  std::uint64_t questions_ = 0;
  std::vector<engine_rank::kv_wish> wishes_;
  std::vector<zmq::pollitem_t> poll_set_;
  std::vector<zmq::socket_t*> kv_sockets_;
  bool poll_set_old_ = true;
  core::timestamp handshake_until_{};
  std::optional<int> exit_code_;
};

int engine_process::run() {
  if (!dial()) {
    return *exit_code_;
  }
  while (!exit_code_) {
    poll_once();
    if (!exit_code_) {
      advance();
      crash_if_asked();
    }
  }
  for (engine_rank& rank : ranks_) {
    rank.say_dead();
  }
  return *exit_code_;
}

bool engine_process::dial() {
  for (std::uint32_t i = 0; i < options_.ranks; ++i) {
    auto rank = engine_rank::dial(context_, options_, static_cast<std::uint16_t>(options_.first_rank + i));
    if (!rank) {
      fail(engine_exit_cannot_listen, rank.error());
      return false;
    }
    ranks_.push_back(std::move(*rank));
  }
  if (options_.lockstep) {
    std::vector<sim::engine_rank_model*> models;
    for (engine_rank& rank : ranks_) {
      models.push_back(&rank.model());
    }
    group_.emplace(std::move(models));
  }
  handshake_until_ =
      now() + std::chrono::duration_cast<core::duration>(std::chrono::duration<double>(options_.handshake_wait_s));
  return true;
}

bool engine_process::join(engine_rank& rank) {
  const auto joined = rank.finish_handshake(context_);
  if (!joined) {
    fail(engine_exit_handshake_failed, "rank " + std::to_string(rank.number()) + ": " + joined.error());
    return false;
  }
  if (!*joined) {
    return false;
  }
  poll_set_old_ = true;
  if (!options_.quiet) {
    const std::string_view role = core::to_string(options_.role);
    std::printf("{\"rank\":%u,\"joined\":true,\"role\":\"%.*s\",\"pid\":%d}\n", static_cast<unsigned>(rank.number()),
                static_cast<int>(role.size()), role.data(), static_cast<int>(getpid()));
    std::fflush(stdout);
  }
  return true;
}

void engine_process::build_poll_set() {
  poll_set_.clear();
  poll_set_.push_back({nullptr, signals_.get(), ZMQ_POLLIN, 0});
  poll_set_.push_back({nullptr, timer_.get(), ZMQ_POLLIN, 0});
  for (engine_rank& rank : ranks_) {
    poll_set_.push_back({rank.inbound().handle(), 0, ZMQ_POLLIN, 0});
  }
  for (engine_rank& rank : ranks_) {
    if (rank.kv_server()) {
      poll_set_.push_back({rank.kv_server()->socket().handle(), 0, ZMQ_POLLIN, 0});
    }
  }
  kv_sockets_ = kv_client_.sockets();
  for (zmq::socket_t* socket : kv_sockets_) {
    poll_set_.push_back({socket->handle(), 0, ZMQ_POLLIN, 0});
  }
  poll_set_old_ = false;
}

std::optional<core::timestamp> engine_process::next_event_time() const {
  std::optional<core::timestamp> earliest;
  const auto consider = [&](std::optional<core::timestamp> at) {
    if (at) {
      earliest = earliest ? std::min(*earliest, *at) : at;
    }
  };
  if (group_) {
    consider(group_->next_event_time());
  } else {
    for (const engine_rank& rank : ranks_) {
      consider(const_cast<engine_rank&>(rank).model().next_event_time());
    }
  }
  if (!all_joined()) {
    consider(handshake_until_);
  }
  return earliest;
}

void engine_process::poll_once() {
  if (poll_set_old_) {
    build_poll_set();
  }
  const auto next = next_event_time();
  long timeout_ms = -1;
  if (next && *next <= now()) {
    timeout_ms = 0;
  } else if (next) {
    set_alarm(timer_, *next);
  }
  try {
    zmq::poll(poll_set_, std::chrono::milliseconds(timeout_ms));
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) {
      throw;
    }
    return;
  }
  if ((poll_set_[0].revents & ZMQ_POLLIN) != 0) {
    exit_code_ = engine_exit_stopped;
    return;
  }
  if ((poll_set_[1].revents & ZMQ_POLLIN) != 0) {
    std::uint64_t expirations = 0;
    static_cast<void>(!read(timer_.get(), &expirations, sizeof expirations));
  }
  std::size_t item = 2;
  const auto ready = [&] { return (poll_set_[item].revents & ZMQ_POLLIN) != 0; };
  for (engine_rank& rank : ranks_) {
    if (ready()) {
      if (rank.joined()) {
        rank.receive(now());
      } else if (!join(rank) && exit_code_) {
        return;
      }
    }
    ++item;
  }
  for (engine_rank& rank : ranks_) {
    if (rank.kv_server()) {
      if (ready()) {
        rank.receive_kv_queries(now());
      }
      ++item;
    }
  }
  for (zmq::socket_t* socket : kv_sockets_) {
    if (ready()) {
      receive_kv_answers(*socket);
    }
    ++item;
  }
  if (!all_joined() && now() >= handshake_until_) {
    fail(engine_exit_handshake_failed, "no INIT from " + options_.handshake_endpoint + " in time");
  }
}

void engine_process::advance() {
  const core::timestamp at = now();
  if (group_) {
    if (const auto next = group_->next_event_time(); next && *next <= at) {
      group_outputs_.resize(ranks_.size());
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        std::swap(group_outputs_[i], ranks_[i].outputs());
      }
      group_->step(at, group_outputs_);
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        std::swap(group_outputs_[i], ranks_[i].outputs());
      }
    }
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    engine_rank& rank = ranks_[i];
    if (!group_) {
      if (const auto next = rank.model().next_event_time(); next && *next <= at) {
        rank.model().step(at, rank.outputs());
      }
    }
    rank.flush(at, wishes_);
    if (!wishes_.empty()) {
      ask_for_kv(i);
      rank.flush(at, wishes_); // what could not be asked
    }
  }
}

void engine_process::ask_for_kv(std::size_t rank) {
  forget_old_questions();
  const auto wait = std::chrono::duration<double>(options_.model.pd_wait_s / options_.model.time_scale);
  for (engine_rank::kv_wish& wish : wishes_) {
    const auto partner = static_cast<std::uint64_t>(wish.where.room) % options_.prefill_ranks;
    const std::string endpoint =
        "tcp://" + wish.where.host + ":" + std::to_string(static_cast<std::uint64_t>(wish.where.port) + partner);
    const std::uint64_t question = ++questions_;
    const auto asked = kv_client_.ask(endpoint, wish.where.room, question);
    if (!asked) {
      ranks_[rank].model().kv_failed(now(), wish.rid, asked.error(), ranks_[rank].outputs());
      continue;
    }
    asked_.emplace(question,
                   asked_kv{rank, std::move(wish.rid), now() + std::chrono::duration_cast<core::duration>(wait)});
    poll_set_old_ = poll_set_old_ || kv_sockets_.size() != kv_client_.sockets().size();
  }
  wishes_.clear();
}

void engine_process::forget_old_questions() {
  constexpr std::size_t worth_a_look = 4096;
  if (asked_.size() > worth_a_look) {
    const core::timestamp at = now();
    std::erase_if(asked_, [&](const auto& entry) { return entry.second.until < at; });
  }
}

void engine_process::receive_kv_answers(zmq::socket_t& socket) {
  kv_client_.receive(socket, [&](std::uint64_t question, bool ready, std::string_view text) {
    const auto found = asked_.find(question);
    if (found == asked_.end()) {
      return;
    }
    engine_rank& rank = ranks_[found->second.rank];
    if (ready) {
      rank.model().kv_arrived(now(), found->second.rid);
    } else {
      rank.model().kv_failed(now(), found->second.rid, text, rank.outputs());
    }
    asked_.erase(found);
  });
}

void engine_process::crash_if_asked() {
  const bool crash =
      std::any_of(ranks_.begin(), ranks_.end(), [](const engine_rank& rank) { return rank.wants_to_crash(); });
  if (crash) {
    usleep(20'000); // lets what was sent reach the wire, so that the node has met this rank
    _exit(engine_exit_crashed);
  }
}

} // namespace

int run_engine(const engine_options& options) {
  if (options.die_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  try {
    return engine_process(options).run();
  } catch (const zmq::error_t& error) {
    std::fprintf(stderr, "rankwise engine: %s\n", error.what());
    return engine_exit_handshake_failed;
  }
}

} // namespace rankwise::app
