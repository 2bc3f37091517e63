#include "messages/errors.hpp"

#include <caf/make_message.hpp>
#include <caf/message.hpp>

namespace rankwise {

std::string to_string(node_error e) {
  switch (e) {
  case node_error::injected_crash:
    return "injected_crash";
  case node_error::handler_threw:
    return "handler_threw";
  case node_error::restart_limit:
    return "restart_limit";
  case node_error::peer_missing:
    return "peer_missing";
  case node_error::not_answering:
    return "not_answering";
  }
  return "unknown";
}

caf::error make_error(node_error e, std::string context) {
  return caf::error{static_cast<std::uint8_t>(e), caf::atom("rankwise"), caf::make_message(std::move(context))};
}

} // namespace rankwise
