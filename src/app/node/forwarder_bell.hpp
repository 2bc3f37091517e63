#pragma once

#include "core/load/doorbell.hpp"
#include "messages/actor_directory.hpp"

#include <caf/send.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace rankwise::app {

/// The one hop between the output path and LoadForwarder: the receiver only rings. On a thread of its own, until
/// `running` is false and the bell is rung once more.
inline void wake_forwarder(core::doorbell& bell, const actor_directory& directory, const std::atomic<bool>& running) {
  std::uint32_t seen = 0;
  while (running) {
    bell.wait(seen);
    if (const auto forwarder = directory.load_forwarder(); forwarder != nullptr && running)
      caf::anon_send(forwarder, wake_atom::value);
    // Coalesce: at most a thousand wake-ups a second, however many batches arrive.
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

} // namespace rankwise::app
