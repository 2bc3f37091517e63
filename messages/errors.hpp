#pragma once

#include <caf/atom.hpp>
#include <caf/error.hpp>

#include <cstdint>
#include <string>

/// Errors of the program itself, as actors report them to each other. How requests end is another matter:
/// core/base/outcome.hpp.
namespace rankwise {

enum class node_error : std::uint8_t {
  injected_crash = 1, ///< A crash_atom was handled: somebody wanted this.
  handler_threw = 2,  ///< An exception left a handler; the context holds its text.
  restart_limit = 3,  ///< A child without which the node cannot work crashed too often.
  peer_missing = 4,   ///< The actor that could answer is being restarted.
  not_answering = 5,  ///< No answer within the time limit.
};

[[nodiscard]] std::string to_string(node_error e);
[[nodiscard]] caf::error make_error(node_error e, std::string context = {});

} // namespace rankwise
