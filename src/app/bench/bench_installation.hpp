#pragma once

#include "app/process/child_process.hpp"
#include "app/process/scratch_folder.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace rankwise::app {

/// The servers that are measured: the node, and what it is compared with (docs/performance.md).
enum class server_kind : std::uint8_t {
  node,   ///< `rankwise node`.
  grpcpp, ///< `rankwise bench-server --kind grpcpp`: a plain server on grpc++.
  bare,   ///< `rankwise bench-server --kind bare`: a prototype with nothing but the data path.
};
/// "node", "grpcpp" or "bare".
[[nodiscard]] std::string_view to_string(server_kind kind);

inline constexpr int bench_rank_count = 8;
/// How long a step of a simulated engine takes: always as long, whatever is in the batch.
inline constexpr double bench_engine_step_ms = 10;

/// One server with its ranks, in processes of their own that end with it.
class installation {
 public:
  /// Starts them and waits until every rank has registered. Throws std::runtime_error with the server's log when it
  /// does not come up.
  explicit installation(server_kind kind);

  /// The CPU that the server has used so far, in seconds.
  [[nodiscard]] double cpu() const;
  /// Ends the server. Of a bench-server: P50 and P99 of its dispatch time, in microseconds.
  std::optional<std::pair<double, double>> end();

  [[nodiscard]] const std::string& grpc() const noexcept { return grpc_; }
  /// Where its admin HTTP listens; empty unless it is a node.
  [[nodiscard]] const std::string& admin() const noexcept { return admin_; }

 private:
  std::string wait_for(const std::string& prefix, const std::string& log);

  std::string grpc_;
  std::string admin_;
  scratch_folder folder_{"rankwise-bench-"};
  std::unique_ptr<child_process> server_;
  std::unique_ptr<child_process> engine_;
};

} // namespace rankwise::app
