#pragma once

#include "app/replay/replay_result.hpp"
#include "sim/workload.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

/// Plays a workload against a running node (or any other SglangScheduler whose ranks are simulated) and checks every
/// token.
namespace rankwise::app {

struct replay_options {
  std::string target = "127.0.0.1:30001";
  std::uint32_t channels = 4; ///< HTTP/2 connections
  std::size_t streams_max =
      8192;               ///< at once; a request beyond waits for one to end, which its time to first token shows
  std::uint64_t seed = 1; ///< of the prompts
  std::string rid_prefix = "replay"; ///< rids are prefix-number; two clients of one node need different ones
  std::optional<std::int32_t> data_parallel_rank; ///< pin every request
  double deadline_s = 0;                          ///< of each request, sent as grpc-timeout; 0 = none
  double silence_s = 60;    ///< when all is sent and nothing has arrived for that long, the open requests are lost
  bool check_tokens = true; ///< false = the server's ranks are not simulated ones
  const std::atomic<bool>* stop = nullptr; ///< set = send no more and cancel what is open
};

struct replay_progress {
  double elapsed_s = 0;
  std::uint64_t total = 0;
  std::uint64_t sent = 0;
  std::uint64_t open = 0;
  std::uint64_t completed = 0;
  std::uint64_t ended_otherwise = 0;
  std::uint64_t tokens = 0;
};

/// Called in the caller's thread.
using replay_watcher = std::function<void(const replay_progress&)>;

/// Each request is sent when it is due, whatever became of the others, save for `streams_max` and for those that follow
/// another request (workload_request::after): these are due their think time after it ended. Returns when
/// all have an outcome or are lost. The requests ask for `output_tokens` tokens with ignore_eos; fewer are wrong.
[[nodiscard]] replay_result replay(const sim::workload& workload, const replay_options& options,
                                   const replay_watcher& watch = {}, double watch_every_s = 0.25);

} // namespace rankwise::app
