#pragma once

#include "core/load/load_report.hpp"
#include "core/rank/rank_link.hpp"
#include "core/request/output_batch.hpp"
#include "messages/dp_rank.hpp"
#include "sim/random.hpp"
#include "tests/actors/event_queue.hpp"
#include "wire/sglang/request_codec.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rankwise::test {

struct simulated_ranks_options {
  struct pool {
    core::pool_role role = core::pool_role::unified;
    std::uint16_t ranks = 1;
  };
  std::vector<pool> pools;
  core::duration delay_max = std::chrono::milliseconds{2}; ///< of one frame on its link
  core::duration receiver_delay_max{};                     ///< between reading an output and telling RequestManager
  double report_loss = 0;                                  ///< share of load reports that never reach the board
  double error_share = 0;                                  ///< of the requests; the engine ends them with status 500
  bool aborts_overtake = false;                            ///< planted: an abort goes before what was sent earlier
  bool outputs_keep_epoch = false;                         ///< planted: an output speaks under its request's epoch
};

/// What the rest of the simulation hears, and is asked.
struct simulated_ranks_callbacks {
  std::function<void(link_event)> on_link_event;
  std::function<void(core::output_batch)> on_outputs;
  std::function<void(const core::load_report&)> on_report;
  /// Whether the node still waits for this attempt. An engine that runs one for nobody never ends it by itself, so that
  /// a lost abort shows.
  std::function<bool(std::string_view engine_rid)> is_wanted;
  std::function<core::timestamp()> now;
  std::function<void(const std::string&)> trace;
  std::function<void(const std::string&)> violation;
};

/// The world behind core::rank_link: links with delays that break, and engines. Frames of one link keep their order in
/// each direction; nothing else keeps any.
class simulated_ranks final : public core::rank_link {
 public:
  simulated_ranks(simulated_ranks_options options, event_queue& events, sim::random_source& random,
                  simulated_ranks_callbacks callbacks);

  core::send_result send(core::rank_id rank, core::rank_epoch epoch, core::rank_frame frame) noexcept override;
  [[nodiscard]] core::timestamp last_output(core::rank_id rank) const noexcept override;
  /// An engine here never hangs behind a living link for as long as that takes.
  void give_up(core::rank_id, core::rank_epoch, std::string) noexcept override { ++links_given_up_; }
  void close(core::rank_id rank, core::rank_epoch epoch) noexcept override;

  /// A new process says HELLO, and registers unless something else happens to it first. With `twice`, its HELLO comes
  /// a second time before it registers.
  void start_process(core::rank_id rank, bool twice = false);
  /// The process is gone, and everything that it ran.
  void kill(core::rank_id rank);
  /// The connection breaks: what is under way is lost. The node notices within the heartbeat timeout.
  void cut(core::rank_id rank);
  /// The process is back on its old endpoints, without a HELLO.
  void reconnect(core::rank_id rank);
  /// A second connection of the same process registers: the node takes it for a loss and a return.
  void register_again(core::rank_id rank);
  void freeze(core::rank_id rank);
  void thaw(core::rank_id rank);
  /// ENGINE_CORE_DEAD, and then the process ends.
  void die_aloud(core::rank_id rank);
  void fill_queue(core::rank_id rank, core::timestamp until);
  /// Repairs whatever is broken, so that every rank can finish its work.
  void heal(core::rank_id rank);

  [[nodiscard]] std::vector<core::rank_id> ranks() const;
  [[nodiscard]] bool is_connected(core::rank_id rank) const;
  struct unwanted_job {
    std::string engine_rid;
    core::timestamp received_at;
    core::timestamp unwanted_at; ///< when the engine would first have noticed
  };
  /// What the living process runs and the node does not wait for.
  [[nodiscard]] std::vector<unwanted_job> running_for_nobody(core::rank_id rank) const;
  [[nodiscard]] std::size_t running(core::rank_id rank) const;

 private:
  std::uint64_t links_given_up_ = 0;
  struct job {
    std::string rid;
    std::uint32_t crc = 0;
    core::rank_epoch epoch = 0; // under which it was sent
    std::uint32_t prompt_tokens = 0;
    std::uint32_t steps_to_prefill = 0;
    std::uint32_t generated = 0;
    std::uint32_t target = 0;
    std::optional<std::int64_t> room;
    bool kv_here = true; // false: a decode leg whose prompt is still with its prefill rank
    bool aborted = false;
    bool fails = false;
    core::timestamp received_at{};
    std::optional<core::timestamp> unwanted_at;
  };
  struct engine_batch {
    core::output_batch content; // without epoch and time
    core::load_report report;
    bool dead = false;
  };
  struct rank_state {
    core::rank_id id;
    // The node's side.
    core::rank_epoch epoch = 0;
    bool lost = false;
    bool closed = true;
    bool registered = false;
    core::timestamp last_output{};
    core::timestamp queue_full_until{};
    std::uint64_t reports = 0;
    core::timestamp told_until{}; // outputs are told in order
    // The link.
    std::uint64_t connection = 0; // counts; what was sent on an earlier one is lost
    bool connected = false;
    core::timestamp down_until{}; // arrivals keep their order
    core::timestamp up_until{};
    // The process.
    std::uint64_t process = 0;
    bool alive = false;
    bool frozen = false;
    std::uint64_t freezes = 0;
    bool step_planned = false;
    std::vector<job> jobs;
    std::vector<std::pair<core::rank_frame, core::rank_epoch>> unread; // while it is frozen
    std::vector<engine_batch> unsent;                                  // while it is not connected
  };

  rank_state& of(core::rank_id id) { return states_.at(id); }
  core::duration some(core::duration max);
  core::timestamp in_order(core::timestamp& until, core::duration delay);
  void tell(rank_state& r, link_event_kind kind, std::string cause);
  void notice_loss(rank_state& r, core::duration within, std::string cause);
  void connect(rank_state& r);
  void disconnect(rank_state& r);
  void receive(rank_state& r, core::rank_frame frame, core::rank_epoch epoch);
  void plan_step(rank_state& r);
  void step(rank_state& r);
  bool run(rank_state& r, job& j, core::output_batch& out);
  bool hand_over(const rank_state& prefill, const job& from);
  void put(const rank_state& r, const job& j, core::output_batch& out, std::uint32_t tokens, core::finish_reason finish,
           std::int32_t status = 0);
  void emit(rank_state& r, engine_batch batch);
  void arrive(rank_state& r, engine_batch batch);
  [[nodiscard]] core::pool_role role_of(const rank_state& r) const { return options_.pools[r.id.pool].role; }

  simulated_ranks_options options_;
  event_queue& events_;
  sim::random_source& random_;
  simulated_ranks_callbacks callbacks_;
  wire::sglang::command_decoder decoder_;
  std::map<core::rank_id, rank_state> states_;
};

} // namespace rankwise::test
