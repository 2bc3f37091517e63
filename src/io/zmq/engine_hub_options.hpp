#pragma once

#include "core/base/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// How an engine hub is set up: its pools, where their ranks connect, and its bounds.
namespace rankwise::io {

/// One pool of ranks and the addresses that its ranks connect to.
struct hub_pool_options {
  std::string name; ///< The pool's name in logs and in the state file; unique among the pools.
  /// Where ranks of this pool say HELLO: "tcp://host:port" (port 0 takes any free one) or "ipc://path". An address that
  /// cannot be bound ends the start with an error that names it.
  std::string handshake = "tcp://127.0.0.1:0";
  /// How many ranks the pool can have. A HELLO of a rank whose number is not below this is logged and not answered.
  std::uint16_t ranks_max = 64;
  /// True: requests and outputs travel over Unix sockets in `ipc_folder`, which only ranks of this machine can reach.
  /// False: they travel over tcp, on the host of `handshake`.
  bool data_over_ipc = false;
  /// The host that ranks are told to connect to for requests and outputs; empty tells them the host of `handshake`. Set
  /// it when that host is 0.0.0.0 or not reachable by that name from the ranks' machines: else they never register.
  std::string advertise_host;
};

/// Everything that an engine hub is told when it is made.
struct engine_hub_options {
  std::vector<hub_pool_options> pools; ///< The pools; the position of a pool here is the `pool` of its rank ids.
  /// The folder of the Unix sockets of pools with `data_over_ipc`. At most 60 bytes, as a Unix socket's path may have
  /// 107 in all; a longer one makes every HELLO of such a pool fail.
  std::string ipc_folder;
  int heartbeat_interval_ms = 100; ///< How often a rank's connection is probed, in milliseconds.
  /// After how many milliseconds without any answer a connection counts as lost: within this time a frozen process or
  /// a cut network is noticed. Too low a value takes a busy rank for a dead one.
  int heartbeat_timeout_ms = 500;
  /// How many requests may wait to be sent to one rank. The next one is told `queue_full_requests`.
  std::uint32_t send_queue_requests_max = 4096;
  /// How many bytes of frames may wait to be sent to one rank. A request beyond it is told `queue_full_bytes`.
  std::uint64_t send_queue_bytes_max = 1ull << 30;
  /// How many frames are read from one socket before the other sockets have their turn.
  int frames_per_round_max = 64;
  /// The addresses or CIDR blocks that may connect over tcp; empty admits every address.
  std::vector<std::string> allowed_peers;
  /// Which start of the node this is. Outputs of requests that another start placed are aborted and dropped.
  core::node_boot boot = 0;
  /// How many requests of earlier starts of the node are remembered per rank while their abort is on its way. Beyond
  /// it an abort goes out later, when the request shows up again.
  std::uint32_t foreign_requests_max = 65'536;
};

} // namespace rankwise::io
