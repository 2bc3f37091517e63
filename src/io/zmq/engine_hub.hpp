#pragma once

#include "core/load/load_board.hpp"
#include "core/rank/rank_link.hpp"
#include "core/request/output_batch.hpp"
#include "messages/dp_rank.hpp"
#include "wire/sglang/wire_error.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// The engine side of a node: handshake and data sockets of every rank. A receiver thread reads outputs; a sender
/// thread does handshakes, and sends what could not be sent at once by the thread that had it.
namespace rankwise::io {

struct hub_pool_options {
  std::string name;
  std::string handshake = "tcp://127.0.0.1:0"; ///< tcp://host:port, port 0 = any; ipc://path
  std::uint16_t ranks_max = 64;
  bool data_over_ipc = false; ///< else over tcp on the handshake's host
  std::string advertise_host; ///< put into INIT instead of the host that is bound, for ranks of other machines
};

/// What a restarted node has to know to have a running rank back without a handshake.
struct rank_record {
  std::string pool;
  std::string identity;
  std::string input_address;
  std::string output_address;
  link_event registration; ///< with rank, epoch, capacity and layouts
};

struct engine_hub_options {
  std::vector<hub_pool_options> pools;
  std::string ipc_folder; ///< of the pools with data_over_ipc; at most 60 bytes, sockaddr_un ends at 107
  int heartbeat_interval_ms = 100;
  int heartbeat_timeout_ms = 500;                  ///< a frozen process or a cut link is known within this
  std::uint32_t send_queue_requests_max = 4096;    ///< per rank
  std::uint64_t send_queue_bytes_max = 1ull << 30; ///< per rank
  int frames_per_round_max = 64;
  std::vector<std::string> allowed_peers;      ///< addresses or CIDR blocks that may connect over tcp; empty: any
  core::node_boot boot = 0;                    ///< outputs of requests that another boot placed are aborted and dropped
  std::uint32_t foreign_requests_max = 65'536; ///< per rank: those whose abort is on its way
};

/// What happens on the hub's threads. None may throw; on_outputs and the rest must not block.
struct engine_hub_callbacks {
  std::function<void(link_event)> on_link_event;
  std::function<void(core::output_batch)> on_outputs;
  /// False while the receiver of batches is too far behind: nothing is read from any rank until it is true again.
  std::function<bool()> may_receive;
  /// The load board wants its reader woken. Not called for pools of one rank.
  std::function<void()> on_load_report;
  std::function<core::timestamp()> now;
  /// A request was handed to ZeroMQ, this long after a front had read it. On the thread that sent it.
  std::function<void(core::duration)> on_dispatched;
  /// The ranks that are registered now; each time that one comes, goes or has another epoch. On the sender thread.
  std::function<void(std::vector<rank_record>)> on_records;
};

/// Counts since the start; readable from any thread.
struct engine_hub_counters {
  std::atomic<std::uint64_t> frames_received{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> frames_sent{0};
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> frames_of_closed_links{0};
  std::atomic<std::uint64_t> unknown_rids{0};    ///< outputs whose rid is not one of ours
  std::atomic<std::uint64_t> foreign_outputs{0}; ///< outputs of requests that another boot of the node placed
  std::atomic<std::uint64_t> foreign_aborts{0};  ///< aborts sent for them
  std::atomic<std::uint64_t> frames_of_given_up_links{0};
  std::atomic<std::uint64_t> peers_refused{0}; ///< connections from addresses that are not in allowed_peers
  std::atomic<std::uint64_t> reports{0};
  std::atomic<std::uint64_t> reports_absent{0}; ///< batches without a usable tail
  std::atomic<std::uint64_t> reports_malformed{0};
  std::atomic<std::uint64_t> receive_pauses{0}; ///< rounds in which may_receive said no
  std::atomic<std::uint64_t> send_queue_full{0};
  std::array<std::atomic<std::uint64_t>, wire::sglang::wire_error_kind_count> malformed{};
};

class engine_hub final : public core::rank_link {
 public:
  /// Binds every handshake endpoint. Throws std::runtime_error naming the endpoint when one cannot be bound.
  engine_hub(engine_hub_options options, engine_hub_callbacks callbacks, std::shared_ptr<core::load_board> board);
  ~engine_hub() override;
  engine_hub(const engine_hub&) = delete;
  engine_hub& operator=(const engine_hub&) = delete;

  /// Binds the endpoints of ranks that an earlier process of this node served, under the same addresses. They are back,
  /// each as a new epoch, when they reconnect. Returns what could not be restored: "decode/3: why". Before start().
  std::vector<std::string> restore(const std::vector<rank_record>& records);

  void start();
  /// Ends both threads and closes every socket. Idempotent.
  void stop() noexcept;

  /// Where ranks of the pool dial in, with the real port.
  [[nodiscard]] const std::string& handshake_endpoint(std::size_t pool) const;
  [[nodiscard]] const engine_hub_counters& counters() const noexcept;

  /// Index of a rank on the load board.
  [[nodiscard]] std::size_t board_slot(core::rank_id rank) const noexcept;
  [[nodiscard]] static std::size_t board_slots(const engine_hub_options& options) noexcept;

  core::send_result send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame frame) noexcept override;
  [[nodiscard]] core::timestamp last_output(core::rank_id rank) const noexcept override;
  void give_up(core::rank_id rank, core::rank_epoch epoch, std::string cause) noexcept override;
  void close(core::rank_id rank, core::rank_epoch epoch) noexcept override;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace rankwise::io
