#pragma once

#include <cstdint>
#include <string>

/// `rankwise bench-server`: the servers that `rankwise bench node` measures the node against.
namespace rankwise::app {

struct bench_server_options {
  /// "grpcpp": a plain grpc++ callback server; one thread receives from the ranks and hands each token to the
  /// ServerWriteReactor of its stream, which merges what queues up behind a write.
  /// "bare": io::grpc::server with the ranks' sockets read on its I/O thread, no actors, no hand-over of tokens between
  /// threads. A second thread sleeps in epoll on the sockets' descriptors and does nothing but wake the first; that is
  /// one wake-up more per round than the 90-line prototype had, which polled them itself.
  std::string kind = "grpcpp";
  std::uint16_t ranks = 8;
  std::string folder; ///< of the sockets to the ranks
};

/// Prints grpc=, handshake=bench:, READY; runs until SIGTERM; then prints dispatch_us=P50 P99 (arrival of a request to
/// its hand-over to ZeroMQ). Returns the exit code.
int run_bench_server(const bench_server_options& options);

} // namespace rankwise::app
