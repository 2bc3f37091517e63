#pragma once

#include "messages/introspector.hpp"
#include "messages/load_forwarder.hpp"
#include "messages/request_manager.hpp"
#include "messages/supervisor.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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
    core::owner_id owner = 0; ///< what the requests of this incarnation carry
  };

  /// The RequestManager to which requests with this hash of their rid belong; null before the first start.
  [[nodiscard]] manager_entry manager_for(std::size_t rid_hash) const {
    const std::lock_guard guard{mutex_};
    return managers_.empty() ? manager_entry{} : managers_[rid_hash % managers_.size()];
  }
  /// The RequestManager of that incarnation; null when it is gone.
  [[nodiscard]] manager_entry manager_of(core::owner_id owner) const {
    const std::lock_guard guard{mutex_};
    for (const auto& entry : managers_)
      if (entry.owner == owner)
        return entry;
    return {};
  }
  [[nodiscard]] std::vector<manager_entry> managers() const {
    const std::lock_guard guard{mutex_};
    return managers_;
  }
  /// Whether some RequestManager has at least so many engine batches waiting.
  [[nodiscard]] bool has_backlog_of(std::uint32_t batches) const {
    const std::lock_guard guard{mutex_};
    for (const auto& entry : managers_)
      if (entry.backlog != nullptr && entry.backlog->batches.load(std::memory_order_relaxed) >= batches)
        return true;
    return false;
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

  /// `index`: which of the node's RequestManagers it is.
  void set(std::size_t index, manager_entry entry) {
    const std::lock_guard guard{mutex_};
    if (index >= managers_.size())
      managers_.resize(index + 1);
    managers_[index] = std::move(entry);
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
    managers_.clear();
    supervisor_ = nullptr;
    introspector_ = nullptr;
    forwarder_ = nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<manager_entry> managers_; // by index
  supervisor_actor supervisor_;
  introspector_actor introspector_;
  load_forwarder_actor forwarder_;
};

} // namespace rankwise
