#pragma once

#include "core/placement/pool_controller.hpp"
#include "core/rank/rank_machine.hpp"
#include "core/supervision/restart_policy.hpp"
#include "io/front/front_options.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// The node's configuration: TOML, every key documented in deploy/rankwise.toml.
namespace rankwise::app {

struct pool_config {
  core::pool_options options;
  std::string handshake = "tcp://127.0.0.1:0";
  std::string advertise; ///< host that is put into INIT; empty: the one that is bound
};

struct node_config {
  std::string grpc = "127.0.0.1:30001";
  std::string admin = "127.0.0.1:30002";
  std::string admin_token_file; ///< empty: only loopback may change anything
  std::string state_dir;        ///< empty: a folder under /tmp that goes with the process
  std::string log_level = "info";
  std::string history_file; ///< empty: none
  std::string decision_log; ///< file; empty: none
  std::uint32_t decision_log_mb_max = 4096;
  bool fault_injection = false;
  double drain_s = 30;
  double ready_max_s = 0; ///< from the start to READY; 0: no limit
  /// Seconds from the start after which the node is ready without ranks that did not come, if each pool has one; 0: it
  /// waits for all. Too low a value lets the first ranks take the load of those that still load their model.
  double ready_with_fewer_s = 0;
  std::uint32_t worker_threads = 2;

  std::vector<pool_config> pools;

  core::restart_limits restarts;
  std::uint32_t forwarder_restarts_max = 5;
  double park_retry_s = 30;

  std::uint32_t heartbeat_interval_ms = 100;
  std::uint32_t heartbeat_timeout_ms = 500;
  std::uint32_t send_queue_requests_max = 4096;
  std::uint64_t send_queue_bytes_max = 1ull << 30;
  std::vector<std::string> allowed_peers; ///< empty: any
  core::rank_timing rank_timing;

  bool load_forwarding = true;
  core::ledger_options ledger;

  std::uint32_t attempts_max = 4;
  double request_time_max_s = 3600;
  std::uint16_t managers = 1; ///< RequestManagers; streams are spread over them by rid
  std::uint32_t streams_max = 65'536;
  std::uint32_t backlog_batches_max = 4096;
  std::uint32_t backlog_submissions_max = 16'384;

  io::front::front_options front;
};

/// Errors are one line each: "FILE:LINE: key: what is wrong".
using config_errors = std::vector<std::string>;

/// The embedded defaults with one unified pool.
[[nodiscard]] node_config default_config();

/// Unknown keys, wrong types, values out of range and impossible combinations are errors.
[[nodiscard]] tl::expected<node_config, config_errors> parse_config(const std::string& text,
                                                                    const std::string& file_name);
/// The token in a file, of at least 16 characters; or what is wrong with the file.
[[nodiscard]] tl::expected<std::string, std::string> read_admin_token(const std::string& path);
[[nodiscard]] tl::expected<node_config, config_errors> load_config(const std::string& path);

/// Every key with the value that would hold, as TOML.
[[nodiscard]] tl::expected<std::string, config_errors> effective_config(const std::string& text,
                                                                        const std::string& file_name);

/// What a combination of pools must obey, whether it came from a file or from flags.
[[nodiscard]] config_errors check_config(const node_config& config);

} // namespace rankwise::app
