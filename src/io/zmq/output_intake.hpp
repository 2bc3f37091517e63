#pragma once

#include "core/base/time.hpp"
#include "core/load/load_board.hpp"
#include "io/zmq/endpoint_directory.hpp"
#include "io/zmq/frame_sender.hpp"
#include "io/zmq/hub_context.hpp"
#include "io/zmq/rank_endpoint.hpp"
#include "wire/sglang/output_codec.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rankwise::io {

/// Turns a frame of a rank into what the node works with: a load report on the load board, a batch of outputs, or the
/// news that the engine is dead. Outputs of requests that an earlier start of the node placed are dropped, and their
/// requests aborted. Receiver thread.
class output_intake {
 public:
  output_intake(hub_context& context, const endpoint_directory& directory, frame_sender& sender,
                std::shared_ptr<core::load_board> board)
      : context_(context), directory_(directory), sender_(sender), board_(std::move(board)) {}

  /// Takes one frame that `endpoint` sent. One that cannot be read is counted and dropped; so is one whose engine_index
  /// names another rank, with its load report: it says nothing of this rank, not even that it is alive.
  void take(rank_endpoint& endpoint, std::string_view frame);

 private:
  [[nodiscard]] bool is_of_another_rank(rank_endpoint& endpoint, const wire::sglang::engine_output& output);
  void take_report(rank_endpoint& endpoint, const std::optional<wire::sglang::load_tail>& load, bool malformed,
                   core::timestamp now) noexcept;
  void take_tokens(rank_endpoint& endpoint, wire::sglang::token_output& tokens, core::timestamp now);
  [[nodiscard]] bool is_to_be_aborted(rank_endpoint& endpoint, const wire::sglang::output_item& item,
                                      core::timestamp now);
  void abort_foreign(rank_endpoint& endpoint, const std::vector<std::string>& rids);

  hub_context& context_;
  const endpoint_directory& directory_;
  frame_sender& sender_;
  std::shared_ptr<core::load_board> board_;
};

} // namespace rankwise::io
