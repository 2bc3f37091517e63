#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <utility>

namespace CLI {
class App;
}

/// How the commands that look at a running node, or change it, speak with its admin HTTP.
namespace rankwise::app {

inline constexpr int exit_done = 0;
inline constexpr int exit_refused = 1;     ///< the node said no, and why
inline constexpr int exit_bad_usage = 2;   ///< of a file or an argument
inline constexpr int exit_no_answer = 3;   ///< no node answers
inline constexpr int exit_not_in_time = 4; ///< it was begun, and not all of it ended within its time

struct node_client {
  explicit node_client(std::string name) : command(std::move(name)) {}

  std::string command; ///< for messages: "drain"
  std::string admin = "127.0.0.1:30002";
  std::string token_file;
  bool as_json = false;

  /// The options that all commands have, and an example.
  void add_options(CLI::App& command_line, const std::string& example, bool writes);

  struct answer {
    int exit_code = exit_done;
    std::string body;
    nlohmann::json json; ///< discarded when the body is not JSON
  };
  /// Anything but 200 is told on standard error.
  [[nodiscard]] answer get(const std::string& path) const;
  [[nodiscard]] answer post(const std::string& path) const;
};

/// For a query: everything but letters, digits, '-', '.', '_' and '~' as %XX.
[[nodiscard]] std::string percent_encoded(const std::string& text);

struct rank_name {
  std::string pool; ///< empty: the only one
  std::string rank;
};
/// "decode/3" or "3".
[[nodiscard]] rank_name split_rank_name(const std::string& text);

} // namespace rankwise::app
