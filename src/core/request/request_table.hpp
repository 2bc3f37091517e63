#pragma once

#include "core/base/block_vector.hpp"
#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/placement/orders.hpp"
#include "core/request/history.hpp"
#include "core/request/output_batch.hpp"
#include "core/request/request.hpp"
#include "core/request/stream_sink.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rankwise::core {

/// Which pools a node has; a request runs in the unified pool, or as a pair, or in the single role of the node.
struct pool_topology {
  static constexpr std::uint16_t none = 0xffff;
  std::uint16_t unified = none;
  std::uint16_t prefill = none;
  std::uint16_t decode = none;

  /// The node pairs the legs itself.
  [[nodiscard]] bool pairs() const noexcept { return prefill != none && decode != none; }
};

struct request_table_options {
  pool_topology pools;
  std::uint32_t attempts_max = 4;                    ///< placements of one request, the first one included
  duration request_time_max = std::chrono::hours{1}; ///< every request ends by then
  std::uint32_t streams_max = 65'536;
  owner_id owner = 1; ///< whose table it is: every handle carries it, and no other incarnation has the same
  std::uint32_t prefix_block_tokens = 0; ///< of the pool that prefills: of a block by which equal beginnings are told
  std::uint64_t seed = 1;                ///< of bootstrap rooms
};

/// Streams since the table was made. accepted = completed + failed + cancelled + in flight, always.
struct request_counts {
  std::uint64_t submitted = 0;
  std::uint64_t accepted = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t refused = 0;
  std::uint64_t moved = 0; ///< placements of a request after its first one
  std::uint64_t tokens_delivered = 0;
  std::uint64_t batches = 0;
  std::uint64_t outputs_of_unknown_requests = 0; ///< late outputs of ended requests, or of another process
  std::uint64_t outputs_of_old_epochs = 0;
  std::uint64_t outputs_of_old_attempts = 0;
  std::uint64_t outputs_behind_a_gap = 0; ///< by the engine's count of tokens, some before them never arrived
  std::uint64_t accepted_open = 0;        ///< streams held now that were accepted: in_flight(), counted in another way
  std::uint64_t placements_of_old_terms = 0; ///< of a controller that had been replaced when they were read
  std::array<std::uint64_t, failure_count> by_failure{};

  [[nodiscard]] std::uint64_t in_flight() const noexcept { return accepted - completed - failed - cancelled; }
  /// Adds what another table counted.
  request_counts& operator+=(const request_counts& other) noexcept;
};

/// "Send this leg to its engine."
struct leg_dispatch {
  rank_id rank;
  rank_epoch epoch = 0;
  leg_id leg;
  std::uint32_t sample = 0;
  request_ptr request;
  std::optional<bootstrap_info> bootstrap; ///< of a leg of a pair
};

/// "This leg is over": its rank forgets it, and tells the engine to stop it when its owner gave it up.
struct leg_close {
  rank_id rank;
  rank_epoch epoch = 0;
  leg_id leg;
  bool abort = false; ///< false: the engine ended it by itself, or is about to
};

/// What has to be said to others after a call, in this order. Cleared by the caller, so that its buffers are reused.
struct request_effects {
  std::vector<pool_orders> pools; ///< by pool index
  std::vector<leg_dispatch> dispatches;
  std::vector<leg_close> closes;
  stream_batch out;        ///< to the front
  batch_progress progress; ///< of the batch just taken; to the controller of its pool
  bool has_progress = false;

  void clear();
};

/// One request as an operator sees it.
struct request_row {
  std::string rid;
  std::uint32_t sample = 0;
  std::string stage; ///< placing, reserved, prefilling, streaming
  std::optional<rank_id> prefill_rank;
  std::optional<rank_id> rank; ///< unified or decode
  std::uint32_t attempt = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  double age_s = 0;
};

/// The thinking of RequestManager: the one writer of a request's life.
/// docs/state_machines.md draws the states of a leg and numbers the transitions.
class request_table {
 public:
  explicit request_table(request_table_options options, history_recorder* history = nullptr);

  void submit(stream_id stream, request_ptr request, timestamp now, request_effects& fx);
  void cancel(stream_id stream, failure why, timestamp now, request_effects& fx);
  void abort(const std::string& rid, timestamp now, request_effects& fx);

  void on_placement(const placement& p, timestamp now, request_effects& fx);
  void on_refusal(const refusal& r, timestamp now, request_effects& fx);
  void on_outputs(const output_batch& batch, request_effects& fx);
  /// A rank did not send a leg to its engine: it is placed again, or its request fails as `reason`.
  void on_dispatch_failed(rank_id rank, leg_id leg, failure reason, std::string_view text, timestamp now,
                          request_effects& fx);
  /// The rank's incarnations up to `epoch` are gone: what was on them is placed again, or fails when its client has
  /// seen a token of it.
  void on_rank_lost(rank_id rank, rank_epoch epoch, std::string_view cause, timestamp now, request_effects& fx);
  /// The rank takes work under `epoch`: what was on earlier epochs is lost. Returns the legs that were sent to it under
  /// this one, for the rank to compare with what it has.
  [[nodiscard]] std::vector<leg_id> on_rank_up(rank_id rank, rank_epoch epoch, timestamp now, request_effects& fx);
  /// Ends what is over its deadline.
  void on_tick(timestamp now, request_effects& fx);
  /// Ends everything, e.g. when the node's drain time is over.
  void end_all(failure why, timestamp now, request_effects& fx);

  /// The controller of `pool` was (re)started under `term`: orders that were not answered are in `fx` again, and what
  /// is placed there is returned.
  [[nodiscard]] owner_legs on_controller_started(std::uint16_t pool, controller_term term, request_effects& fx);

  [[nodiscard]] const request_counts& counts() const noexcept { return counts_; }
  [[nodiscard]] std::size_t open_streams() const noexcept { return streams_.size(); }
  [[nodiscard]] std::optional<timestamp> next_deadline() const;
  /// Legs that hold a charge in the pool, in the order of their handles.
  [[nodiscard]] std::vector<leg_id> legs_in(std::uint16_t pool) const;
  /// Legs that were sent to the rank under this epoch and have not ended, in the order of their handles.
  [[nodiscard]] std::vector<leg_id> legs_on(rank_id rank, rank_epoch epoch) const;
  [[nodiscard]] std::vector<request_row> rows(timestamp now, std::size_t limit) const;

 private:
  enum class leg_state : std::uint8_t { none, placing, reserved, placed, ended };

  struct leg {
    leg_state state = leg_state::none;
    std::uint16_t pool = 0;
    std::uint16_t rank = 0;
    rank_epoch epoch = 0;
    bool released = false;
    bool prefilled = false;
  };

  struct slot {
    request_handle handle = 0; // 0 = free
    stream_id stream = 0;
    std::uint32_t used = 0; // how often
    std::uint32_t sample = 0;
    std::uint32_t attempt = 0;
    std::uint32_t next_index = 0; // tokens delivered so far
    std::uint32_t next_free = 0;
    request_ptr request;
    leg legs[2];                 // [0] unified, or the node's single role, or decode of a pair; [1] prefill of a pair
    placement prefill_placement; // of a pair, until the room is minted
    std::int64_t room = -1;
    timestamp received_at{};
  };

  struct stream_entry {
    request_ptr request;
    std::vector<request_handle> handles; // open samples
    bool accepted = false;
    timestamp deadline{};
  };

  static constexpr std::uint32_t no_slot = 0xffffffff;

  slot* find(request_handle handle);
  request_handle open_slot();
  void close_slot(request_handle handle);
  leg* leg_in(slot& s, std::uint16_t pool);
  template <class Which>
  [[nodiscard]] std::vector<leg_id> legs_where(Which which) const;
  void order_placement(request_handle handle, slot& s, request_effects& fx);
  [[nodiscard]] place_order place_order_of(request_handle handle, const slot& s) const;
  void dispatch(slot& s, leg& l, request_effects& fx) const;
  [[nodiscard]] bool is_reachable(rank_id rank, rank_epoch epoch) const;
  void lose_leg(slot& s, leg& l, failure why, std::string text, timestamp now, request_effects& fx);
  template <class F>
  void for_legs_on(rank_id rank, F&& f);
  void accept(stream_entry& stream, const slot& s, timestamp now);
  void end_legs(request_handle handle, slot& s, bool abort, request_effects& fx);
  void end_stream(stream_id id, outcome why, timestamp now, request_effects& fx);
  void move_or_fail(request_handle handle, failure why, std::string text, timestamp now, request_effects& fx);
  void mint_room(slot& s);
  void on_prefill_output(request_handle handle, slot& s, const output_item& item, const output_batch& batch,
                         request_effects& fx);
  void on_token_output(request_handle handle, slot& s, const output_item& item, const output_batch& batch,
                       request_effects& fx);
  void on_gap(slot& s, std::uint32_t missing, const output_batch& batch, request_effects& fx);
  void note(history_kind kind, timestamp at, const slot& s, const leg* l);
  void note_tokens(const slot& s, const output_item& item, const output_batch& batch);
  void note_outcome(stream_id id, const outcome& why, timestamp at);
  std::uint64_t& generated_on(std::uint16_t pool, std::uint16_t rank);
  [[nodiscard]] static leg_record record_of(const slot& s, const leg& l);

  request_table_options options_;
  history_recorder* history_;
  block_vector<slot> slots_;
  std::uint32_t free_head_ = no_slot;
  std::uint32_t open_slots_ = 0;
  std::unordered_map<stream_id, stream_entry> streams_;
  std::unordered_map<std::string, stream_id> rids_;
  std::set<std::pair<timestamp, stream_id>> deadlines_;
  std::unordered_map<rank_id, std::uint64_t> generated_; // tokens generated by legs now on the rank
  std::map<std::uint16_t, controller_term> terms_;       // by pool, the newest heard of
  std::unordered_map<rank_id, rank_epoch> reachable_;    // ranks that take dispatches, and under which epoch
  std::mt19937_64 random_;
  std::uint64_t room_base_ = 0;
  request_counts counts_;
};

} // namespace rankwise::core
