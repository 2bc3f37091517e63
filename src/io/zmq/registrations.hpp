#pragma once

#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/rank_links.hpp"

#include <string_view>

namespace rankwise::io {

/// Reads what ranks register on their own endpoints: capacity, limits and the layout of requests. A registration that
/// cannot be read, or that another identity sent, is told as refused and changes nothing. Sender thread.
class registrations {
 public:
  registrations(hub_context& context, endpoint_directory& directory, rank_links& links)
      : context_(context), directory_(directory), links_(links) {}

  /// Reads what arrived on `endpoint.input`. True when something may be left for another round.
  bool read(rank_endpoint& endpoint);

 private:
  void take(rank_endpoint& endpoint, std::string_view identity, zmq::message_t& payload);

  hub_context& context_;
  endpoint_directory& directory_;
  rank_links& links_;
};

} // namespace rankwise::io
