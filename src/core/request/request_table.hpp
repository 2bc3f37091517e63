#pragma once

#include "core/base/block_vector.hpp"
#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/placement/placement.hpp"
#include "core/request/history.hpp"
#include "core/request/output_batch.hpp"
#include "core/request/request.hpp"
#include "core/request/stream_sink.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
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
  std::uint64_t first_generation = 1; ///< handles of an earlier incarnation of the table must not come again
  std::uint64_t seed = 1;             ///< of bootstrap rooms
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
  std::uint64_t accepted_open = 0;    ///< streams held now that were accepted: in_flight(), counted in another way
  std::uint64_t aborts_forgotten = 0; ///< not acknowledged by a controller, and too many to be kept
  std::array<std::uint64_t, failure_count> by_failure{};

  [[nodiscard]] std::uint64_t in_flight() const noexcept { return accepted - completed - failed - cancelled; }
};

/// What has to be said to others after a call. Cleared by the caller, so that its buffers are reused.
struct request_effects {
  struct for_pool {
    std::vector<place_order> places;
    std::vector<commit_order> commits;
    std::vector<request_handle> releases;
    std::vector<end_order> ends;
    std::uint64_t aborts_until = 0; ///< not 0: the controller acknowledges the aborts up to this number
    [[nodiscard]] bool empty() const noexcept {
      return places.empty() && commits.empty() && releases.empty() && ends.empty();
    }
  };
  std::vector<for_pool> pools; ///< by pool index
  stream_batch out;            ///< to the front
  batch_progress progress;     ///< of the batch just taken; to the controller of its pool
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
  /// The controller sent the committed leg to its rank.
  void on_dispatched(std::uint16_t pool, request_handle handle, std::uint32_t attempt);
  void on_outputs(const output_batch& batch, request_effects& fx);
  /// The controller dropped these legs with a rank.
  void on_rank_lost(rank_id rank, rank_epoch epoch, const std::vector<request_handle>& handles, std::string_view cause,
                    timestamp now, request_effects& fx);
  /// The controller cannot tell whether these legs reached their rank. Those without a token are placed again.
  void on_legs_doubtful(rank_id rank, rank_epoch epoch, const std::vector<request_handle>& handles,
                        std::string_view cause, timestamp now, request_effects& fx);
  /// Ends what is over its deadline.
  void on_tick(timestamp now, request_effects& fx);
  /// Ends everything, e.g. when the node's drain time is over.
  void end_all(failure why, timestamp now, request_effects& fx);

  /// The controller carried out the ends whose aborts have numbers up to this one.
  void on_aborts_done(std::uint16_t pool, std::uint64_t until);

  /// What a restarted controller has to know.
  struct restart_records {
    std::vector<leg_record> legs;  ///< placed
    std::vector<leg_record> ended; ///< whose abort the old controller may not have sent
    std::uint64_t aborts_until = 0;
  };
  /// The controller of `pool` was restarted. Orders that it may not have carried out are in `fx` again.
  [[nodiscard]] restart_records on_controller_restarted(std::uint16_t pool, request_effects& fx);

  [[nodiscard]] const request_counts& counts() const noexcept { return counts_; }
  [[nodiscard]] std::size_t open_streams() const noexcept { return streams_.size(); }
  [[nodiscard]] std::optional<timestamp> next_deadline() const;
  [[nodiscard]] std::vector<request_row> rows(timestamp now, std::size_t limit) const;

 private:
  enum class leg_state : std::uint8_t { none, placing, reserved, committed, placed, ended };

  struct leg {
    leg_state state = leg_state::none;
    std::uint16_t pool = 0;
    std::uint16_t rank = 0;
    rank_epoch epoch = 0;
    bool released = false;
    bool prefilled = false;
  };

  struct slot {
    std::uint64_t generation = 0; // of the handle now in the slot; 0 = free
    stream_id stream = 0;
    std::uint32_t number = 0; // of this slot
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

  static constexpr std::uint64_t slot_bits = 24;
  static constexpr std::uint64_t slot_mask = (1ull << slot_bits) - 1;
  static constexpr std::uint32_t no_slot = 0xffffffff;

  slot* find(request_handle handle);
  request_handle handle_of(const slot& s) const;
  request_handle open_slot();
  void close_slot(request_handle handle);
  leg* leg_in(slot& s, std::uint16_t pool);
  void order_placement(request_handle handle, slot& s, request_effects& fx);
  [[nodiscard]] place_order place_order_of(request_handle handle, const slot& s) const;
  [[nodiscard]] static commit_order commit_order_of(request_handle handle, const slot& s);
  void accept(stream_entry& stream, const slot& s, timestamp now);
  void end_legs(request_handle handle, slot& s, bool abort, request_effects& fx);
  void end_stream(stream_id id, outcome why, timestamp now, request_effects& fx);
  void move_or_fail(request_handle handle, failure why, std::string text, timestamp now, request_effects& fx);
  void mint_room(slot& s);
  void on_prefill_output(request_handle handle, slot& s, const output_item& item, const output_batch& batch,
                         request_effects& fx);
  void on_token_output(request_handle handle, slot& s, const output_item& item, const output_batch& batch,
                       request_effects& fx);
  void note(history_kind kind, timestamp at, const slot& s, const leg* l);
  void note_tokens(const slot& s, const output_item& item, const output_batch& batch);
  void note_outcome(stream_id id, const outcome& why, timestamp at);
  std::uint64_t& generated_on(std::uint16_t pool, std::uint16_t rank);
  [[nodiscard]] leg_record record_of(request_handle handle, const slot& s, const leg& l) const;
  void expect_abort(request_handle handle, const slot& s, const leg& l, request_effects& fx);

  // Ends with an abort that the pool's controller has not acknowledged.
  struct open_aborts {
    struct entry {
      std::uint64_t number = 0;
      leg_record leg; // of one that was being placed, the rank is filled in when its placement comes
      bool placed = false;
    };
    std::deque<entry> entries;
    std::uint64_t last_number = 0;
  };

  request_table_options options_;
  history_recorder* history_;
  block_vector<slot> slots_;
  std::uint32_t free_head_ = no_slot;
  std::uint64_t next_generation_;
  std::unordered_map<stream_id, stream_entry> streams_;
  std::unordered_map<std::string, stream_id> rids_;
  std::set<std::pair<timestamp, stream_id>> deadlines_;
  std::unordered_map<rank_id, std::uint64_t> generated_; // tokens generated by legs now on the rank
  std::map<std::uint16_t, open_aborts> open_aborts_;     // by pool
  std::mt19937_64 random_;
  std::uint64_t room_base_ = 0;
  request_counts counts_;
};

} // namespace rankwise::core
