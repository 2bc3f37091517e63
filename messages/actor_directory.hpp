#pragma once

#include "messages/introspector.hpp"
#include "messages/load_forwarder.hpp"
#include "messages/request_manager.hpp"
#include "messages/supervisor.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace rankwise {

/// How many messages a thread outside the actor system has under way to RequestManager. One per incarnation, so that
/// what died with one does not count against the next.
struct manager_backlog {
  std::atomic<std::uint32_t> batches{0};
  std::atomic<std::uint32_t> submissions{0};
};

/// Where threads that are no actors (fronts, receiver, HTTP) find the present incarnation of an actor. Written by the
/// Supervisor. A handle may be null before the first start, and dead for the moment between a crash and the restart.
class actor_directory {
 public:
  struct manager_entry {
    request_manager_actor handle;
    std::shared_ptr<manager_backlog> backlog;
  };

  [[nodiscard]] manager_entry request_manager() const {
    const std::lock_guard guard{mutex_};
    return manager_;
  }
  [[nodiscard]] supervisor_actor supervisor() const {
    const std::lock_guard guard{mutex_};
    return supervisor_;
  }
  [[nodiscard]] introspector_actor introspector() const {
    const std::lock_guard guard{mutex_};
    return introspector_;
  }
  [[nodiscard]] load_forwarder_actor load_forwarder() const {
    const std::lock_guard guard{mutex_};
    return forwarder_;
  }

  void set(manager_entry entry) {
    const std::lock_guard guard{mutex_};
    manager_ = std::move(entry);
  }
  void set(supervisor_actor handle) {
    const std::lock_guard guard{mutex_};
    supervisor_ = std::move(handle);
  }
  void set(introspector_actor handle) {
    const std::lock_guard guard{mutex_};
    introspector_ = std::move(handle);
  }
  void set(load_forwarder_actor handle) {
    const std::lock_guard guard{mutex_};
    forwarder_ = std::move(handle);
  }

  /// Lets go of every handle; called before the actor system ends.
  void clear() {
    const std::lock_guard guard{mutex_};
    manager_ = manager_entry{};
    supervisor_ = nullptr;
    introspector_ = nullptr;
    forwarder_ = nullptr;
  }

 private:
  mutable std::mutex mutex_;
  manager_entry manager_;
  supervisor_actor supervisor_;
  introspector_actor introspector_;
  load_forwarder_actor forwarder_;
};

} // namespace rankwise
