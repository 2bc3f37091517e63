#pragma once

#include "core/load/load_board.hpp"
#include "core/rank/rank_link.hpp"
#include "io/zmq/engine_hub_callbacks.hpp"
#include "io/zmq/engine_hub_counters.hpp"
#include "io/zmq/engine_hub_options.hpp"
#include "io/zmq/rank_record.hpp"

#include <memory>
#include <string>
#include <vector>

namespace rankwise::io {

/// The engine side of a node: the ZeroMQ sockets to every rank of every pool. Owns two threads: the receiver reads
/// outputs (output_receiver.hpp); the sender does handshakes, follows connections, and sends what could not be sent at
/// once by the thread that had it (sender_loop.hpp). What happens is told by the callbacks. The node makes, starts and
/// stops it; any thread may call the functions of core::rank_link.
class engine_hub final : public core::rank_link {
 public:
  /// Binds every handshake endpoint. Throws std::runtime_error naming the endpoint when one cannot be bound. Reports of
  /// load go to `board`, which must have `board_slots(options)` slots.
  engine_hub(engine_hub_options options, engine_hub_callbacks callbacks, std::shared_ptr<core::load_board> board);
  ~engine_hub() override;
  engine_hub(const engine_hub&) = delete;
  engine_hub& operator=(const engine_hub&) = delete;

  /// Binds the endpoints of ranks that an earlier process of this node served, under the same addresses. They are back,
  /// each as a new epoch, when they reconnect. Returns what could not be restored: "decode/3: why". Before start().
  std::vector<std::string> restore(const std::vector<rank_record>& records);

  void start();
  /// Ends both threads and closes every socket. Further calls do nothing.
  void stop() noexcept;

  /// Where ranks of a pool dial in, with the real port. Throws std::out_of_range when there is no such pool.
  [[nodiscard]] const std::string& handshake_endpoint(std::size_t pool) const;
  [[nodiscard]] const engine_hub_counters& counters() const noexcept;

  /// The index of a rank on the load board.
  [[nodiscard]] std::size_t board_slot(core::rank_id rank) const noexcept;
  /// How many slots the load board of such a hub needs: one per possible rank.
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
