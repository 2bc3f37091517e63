#pragma once

#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/engine_sockets.hpp"
#include "io/zmq/handshakes.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/rank_links.hpp"
#include "io/zmq/rank_record.hpp"

#include <string>
#include <vector>

namespace rankwise::io {

/// Serves ranks again that an earlier process of the node served: binds their sockets under the same addresses, where
/// the ranks reconnect by themselves. Called before the hub's threads run.
class rank_restore {
 public:
  rank_restore(hub_context& context, engine_sockets& sockets, endpoint_directory& directory, rank_links& links,
               const handshakes& handshakes)
      : context_(context), sockets_(sockets), directory_(directory), links_(links), handshakes_(handshakes) {}

  /// Takes in every rank that can be restored. Returns why the others cannot be: "decode/3: ranks_max is smaller now".
  std::vector<std::string> take_in(const std::vector<rank_record>& records);

 private:
  [[nodiscard]] std::string take_in(const rank_record& record);

  hub_context& context_;
  engine_sockets& sockets_;
  endpoint_directory& directory_;
  rank_links& links_;
  const handshakes& handshakes_;
};

} // namespace rankwise::io
