#pragma once

#include "core/base/ids.hpp"
#include "io/zmq/descriptor_poll.hpp"
#include "io/zmq/rank_endpoint.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace rankwise::io {

/// What other threads want the sender thread to do with links: a letter box. Any thread puts in and thereby wakes the
/// sender thread, which takes out.
class link_orders {
 public:
  /// The endpoint of an incarnation is to be closed for good.
  struct close_order {
    core::rank_id rank;
    core::rank_epoch epoch = 0;
  };
  /// The engine behind an incarnation hangs: its requests are taken from it.
  struct give_up_order {
    core::rank_id rank;
    core::rank_epoch epoch = 0;
    std::string cause; ///< For logs and the answers of the requests that fail by it.
  };
  struct orders {
    std::vector<close_order> closes;
    std::vector<give_up_order> give_ups;
    std::vector<rank_endpoint_ptr> heard_again; ///< Endpoints that were given up and brought an output since.
  };

  explicit link_orders(wake_up& sender_thread) : sender_thread_(sender_thread) {}

  void close(core::rank_id rank, core::rank_epoch epoch) {
    {
      const std::lock_guard guard{mutex_};
      orders_.closes.push_back({rank, epoch});
    }
    sender_thread_.raise();
  }

  void give_up(core::rank_id rank, core::rank_epoch epoch, std::string cause) {
    {
      const std::lock_guard guard{mutex_};
      orders_.give_ups.push_back({rank, epoch, std::move(cause)});
    }
    sender_thread_.raise();
  }

  /// An endpoint that was given up brought an output. Further calls before the sender thread took it change nothing.
  void heard_again(const rank_endpoint_ptr& endpoint) {
    {
      const std::lock_guard guard{mutex_};
      auto& heard = orders_.heard_again;
      if (std::find(heard.begin(), heard.end(), endpoint) != heard.end())
        return;
      heard.push_back(endpoint);
    }
    sender_thread_.raise();
  }

  /// Sender thread: everything that was put in since the last call.
  [[nodiscard]] orders take() {
    const std::lock_guard guard{mutex_};
    return std::exchange(orders_, {});
  }

 private:
  wake_up& sender_thread_;
  std::mutex mutex_;
  orders orders_; // under mutex_
};

} // namespace rankwise::io
