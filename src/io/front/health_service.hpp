#pragma once

#include "io/grpc/server.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

/// grpc.health.v1: Check and Watch.
namespace rankwise::io::front {

class health_service {
 public:
  /// `serving` is asked on the server's I/O thread, at each Check and twice a second while somebody watches.
  health_service(grpc::server& server, std::function<bool()> serving);

  /// Adds the methods; before the server starts. `services` beside the empty name, which is the server as a whole.
  void install(std::vector<std::string> services);

  /// I/O thread only: tell the watchers now if the status has changed.
  void refresh();

 private:
  class watch_call;

  [[nodiscard]] bool known(std::string_view service) const;
  void arm();

  grpc::server& server_;
  std::function<bool()> serving_;
  std::vector<std::string> services_;
  std::vector<watch_call*> watchers_;
  bool armed_ = false;
};

} // namespace rankwise::io::front
