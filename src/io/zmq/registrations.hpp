#pragma once

#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/rank_links.hpp"

#include <string_view>

namespace rankwise::io {

/// Reads what ranks register on their own endpoints: capacity, limits and the layout of requests. A registration that
/// cannot be read, that another identity sent, whose values cannot be true, or that contradicts other ranks of the pool
/// is told as refused and changes nothing: its rank may register again. Sender thread.
class registrations {
 public:
  registrations(hub_context& context, endpoint_directory& directory, rank_links& links)
      : context_(context), directory_(directory), links_(links) {}

  /// Reads what arrived on `endpoint.input`. True when something may be left for another round.
  bool read(rank_endpoint& endpoint);
  /// Takes registrations that were refused because they contradicted ranks that are gone by now.
  void take_contested();

 private:
  void take(rank_endpoint& endpoint, std::string_view identity, zmq::message_t& payload);
  void accept(rank_endpoint& endpoint, link_event registration, int fd);

  hub_context& context_;
  endpoint_directory& directory_;
  rank_links& links_;
};

} // namespace rankwise::io
