#include "io/zmq/sender_loop.hpp"

namespace rankwise::io {

namespace {

constexpr int idle_wait_ms = 1000;
/// While frames wait for a rank: nothing signals that ZeroMQ takes more of them, it has to be tried.
constexpr int backlog_wait_ms = 2;

} // namespace

void sender_loop::run(const std::atomic<bool>& running) {
  p_.poll.add(p_.wake.fd(), &p_.wake);
  p_.hellos.watch(p_.poll);
  bool backlog = false;
  bool more = true;
  while (running) {
    if (wait(more ? 0 : backlog ? backlog_wait_ms : idle_wait_ms))
      more = true;
    // What happens to these sockets is rare (a rank comes or goes): then all of them are looked at.
    if (p_.sender.took_signal_of_input() || more)
      more = read_all();
    p_.links.carry_out(p_.orders.take());
    p_.links.bring_back_refused();
    p_.registered.take_contested();
    backlog = p_.sender.send_queued();
    more = more || p_.sender.took_signal_of_input();
  }
  p_.links.retire_all();
}

/// True when a socket was signalled.
bool sender_loop::wait(int timeout_ms) {
  bool signalled = false;
  for (const auto* owner : p_.poll.wait(timeout_ms)) {
    if (owner == &p_.wake)
      p_.wake.lower();
    else
      signalled = true;
  }
  return signalled;
}

/// True when something was left for another round.
bool sender_loop::read_all() {
  bool more = false;
  const auto endpoints = p_.links.all(); // a copy: a HELLO changes it
  for (const auto& endpoint : endpoints) {
    more = p_.registered.read(*endpoint) || more;
    p_.monitor.read(*endpoint);
  }
  return p_.hellos.read_all() || more;
}

} // namespace rankwise::io
