#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/request/request.hpp"
#include "sim/prefix_cache.hpp"
#include "sim/random.hpp"
#include "sim/step_time.hpp"
#include "wire/sglang/output_codec.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

/// One data-parallel rank of an engine as its clients see it: when it answers, with what, and how full it is. Time is a
/// parameter; the same model runs as a process on the real wire and inside a simulation.
namespace rankwise::sim {

/// How a rank misbehaves. Crashing is the business of whoever runs the model: it watches `requests_seen()`.
struct misbehaviour {
  std::uint64_t freeze_after_requests = 0; ///< 0 = never; stops stepping once it has seen that many
  double slow_factor = 1;                  ///< steps take that many times longer
  bool fail_all = false;                   ///< each request ends at once with status 500
};

struct engine_rank_options {
  core::pool_role role = core::pool_role::unified;
  std::uint64_t kv_capacity_tokens = 1 << 20;
  std::uint32_t running_requests_max = 256;
  std::uint32_t chunk_tokens = 8192;      ///< prefill tokens of one step, over all requests
  std::uint32_t prefix_block_tokens = 64; ///< 0 = no prefix cache
  /// Share of the tokens that admitted requests may still generate for which room is kept when another one is admitted;
  /// the less, the fuller the rank and the more often it has to retract.
  double new_token_ratio = 0.3;
  step_time_constants step_time;
  double step_jitter = 0;                ///< each step is longer or shorter by up to this share
  double time_scale = 1;                 ///< this many times faster than the constants say
  double kv_transfer_base_s = 2e-3;      ///< prefill -> decode; scaled
  double kv_transfer_per_token_s = 2e-7; ///< ~5M tokens/s: 320 KB a token (llama2-70b, fp16, GQA) at 1.6 TB/s; scaled
  /// How long either leg of a pair waits for the other; scaled. SGLang's default (SGLANG_DISAGGREGATION_WAITING_TIMEOUT
  /// and _BOOTSTRAP_TIMEOUT, srt/environ.py of 0.5.23): a full prefill pool must not look like a missing partner.
  double pd_wait_s = 300;
  misbehaviour faults;
  /// Tell progress by number (`rank_outputs::progress`) instead of with the wire's batches: what a simulation reads.
  bool numbers_only = false;
};

/// A request as the engine gets it.
struct rank_request {
  std::string rid;
  std::uint64_t number = 0; ///< the runner's own name for it, see numbers_only
  std::uint32_t input_tokens = 0;
  std::vector<std::uint64_t> blocks;  ///< hash_blocks of the prompt; empty = shares nothing
  std::uint32_t max_new_tokens = 128; ///< what it generates: nothing stops it earlier
  bool stream = true;                 ///< false = one output, at the end
  std::optional<core::bootstrap_info> bootstrap;
};

/// A request that ends outside of a step: the engine's terminal abort.
struct terminal_abort {
  std::string rid;
  std::string message;
  std::int32_t status = 0; ///< HTTP status; 0 = none
  std::uint64_t number = 0;
};

/// What a step meant for one request, for a runner that needs no tokens.
struct request_progress {
  std::uint64_t number = 0;
  std::uint32_t generated = 0; ///< tokens so far
  std::uint32_t cached = 0;    ///< prompt tokens that the prefix cache had
  core::finish_reason finish = core::finish_reason::none;
};

/// A decode rank asks for the KV of a room.
struct kv_query {
  std::string rid;
  std::uint64_t number = 0;
  core::bootstrap_info where;
};

/// A prefill rank's answer to `query_kv`.
struct kv_answer {
  std::uint64_t query = 0; ///< as given to query_kv
  bool ready = false;
  std::string message; ///< why not
};

/// What a rank has to say; the runner clears it and passes it in again, so that its memory is reused.
struct rank_outputs {
  wire::sglang::token_output batch;       ///< engine_index and load are the runner's to fill
  std::vector<request_progress> progress; ///< instead of `batch` when the options say numbers_only
  std::vector<terminal_abort> aborts;
  std::vector<kv_query> queries;
  std::vector<kv_answer> answers;

  [[nodiscard]] bool empty() const noexcept {
    return batch.items.empty() && progress.empty() && aborts.empty() && queries.empty() && answers.empty();
  }
  void clear() noexcept {
    batch.items.clear();
    batch.tokens.clear();
    progress.clear();
    aborts.clear();
    queries.clear();
    answers.clear();
  }
};

class engine_rank_model {
 public:
  engine_rank_model(engine_rank_options options, std::uint64_t seed);

  /// Queue a request. Its refusal (too long, no room number on a prefill or decode rank, a known rid) is an abort in
  /// `out`.
  void add(core::timestamp now, rank_request request, rank_outputs& out);
  /// Ends a request: at once when it waits, with the next step when it runs. Unknown rids are no error.
  void abort(core::timestamp now, std::string_view rid, rank_outputs& out);

  /// When `step` has something to do; nullopt = only a call from outside can change anything.
  [[nodiscard]] std::optional<core::timestamp> next_event_time() const;
  /// Does what is due at `now`: ends a step, starts the next, lets waits run out.
  void step(core::timestamp now, rank_outputs& out);

  // The same in parts, for lockstep_group: expire, then finish_step when due, then plan_step and begin_step.
  void expire(core::timestamp now, rank_outputs& out);
  void finish_step(core::timestamp now, rank_outputs& out);
  /// Chooses what the next step computes and returns how long it takes; nullopt = nothing to compute.
  [[nodiscard]] std::optional<core::duration> plan_step(rank_outputs& out);
  void begin_step(core::timestamp start, core::timestamp end);
  [[nodiscard]] bool frozen() const noexcept;
  [[nodiscard]] bool stepping() const noexcept { return step_end_.has_value(); }
  [[nodiscard]] std::optional<core::timestamp> step_end() const noexcept { return step_end_; }
  [[nodiscard]] bool has_work() const noexcept;
  [[nodiscard]] std::optional<core::timestamp> next_timer() const;

  // -- prefill rank: a decode rank asks for a room
  // -----------------------------------------------------------------------
  /// Answered in some later outputs, within the wait limit. `query` is the runner's own name for it.
  void query_kv(core::timestamp now, std::int64_t room, std::uint64_t query);
  // -- decode rank: the answer
  // --------------------------------------------------------------------------------------------
  void kv_arrived(core::timestamp now, std::string_view rid);
  void kv_failed(core::timestamp now, std::string_view rid, std::string_view why, rank_outputs& out);

  [[nodiscard]] wire::sglang::load_tail load() const noexcept;
  /// Prompt tokens of the requests that wait to be admitted.
  [[nodiscard]] std::uint64_t waiting_tokens() const noexcept;
  /// Prompt tokens that are still to be computed, waiting or admitted.
  [[nodiscard]] std::uint64_t tokens_to_compute() const noexcept;
  [[nodiscard]] std::uint64_t requests_seen() const noexcept { return requests_seen_; }
  [[nodiscard]] std::uint64_t requests_open() const noexcept { return requests_.size(); }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  /// The newest one that was planned, with the time that the rank needs by itself: in lockstep it may last longer.
  [[nodiscard]] const measured_step& last_step() const noexcept { return last_step_; }
  [[nodiscard]] std::uint64_t retractions() const noexcept { return retractions_; }
  /// Forgets the prefixes that no running request uses (control call flush_cache).
  void flush_cache();
  /// From now on it takes what it is given and does nothing: not even the step ends that it is in.
  void freeze() noexcept { is_frozen_ = true; }
  /// From the next step on.
  void set_slow_factor(double factor) noexcept { options_.faults.slow_factor = factor; }

 private:
  enum class phase : std::uint8_t { waiting, awaiting_kv, running, holding_kv, sending_kv };

  struct request {
    rank_request asked;
    std::uint32_t crc = 0;
    phase at = phase::waiting;
    std::uint32_t generated = 0;
    std::uint32_t sent = 0;           ///< of `generated`, how many went out
    std::uint32_t to_compute = 0;     ///< prompt tokens left to prefill
    std::uint32_t chunk = 0;          ///< of those, in the current step
    std::uint32_t cached = 0;         ///< tokens taken from the prefix cache at the first admission
    std::size_t blocks_held = 0;      ///< leading blocks that this request refers to in the cache
    std::uint64_t private_tokens = 0; ///< KV of its own
    bool in_step = false;             ///< gets a token at the end of the current step
    bool kv_swapped = false;          ///< decode rank: retracted; comes back without asking for its KV again
    bool abort_asked = false;
    bool first_admission = true;
    std::optional<std::pair<core::timestamp, std::uint64_t>> timer; ///< key in timers_
    std::optional<std::uint64_t> query;                             ///< prefill rank: who gets the KV
  };
  struct open_query {
    std::uint64_t query = 0;
    core::timestamp until;
  };

  [[nodiscard]] core::duration scaled(double seconds) const noexcept;
  [[nodiscard]] std::uint64_t used_tokens() const noexcept;
  [[nodiscard]] std::uint64_t free_tokens() const noexcept { return options_.kv_capacity_tokens - used_tokens(); }
  [[nodiscard]] std::uint64_t pending_new_tokens() const noexcept;
  void take_private(request& r, std::uint64_t tokens);
  void release_kv(request& r);
  void share_prompt(request& r);
  [[nodiscard]] bool admit(request& r, rank_outputs& out);
  void admit_waiting(rank_outputs& out);
  void retract_until_steps_fit();
  void retract(request& r);
  void emit(request& r, core::finish_reason finish, rank_outputs& out);
  void prefill_done(core::timestamp now, request& r);
  void start_transfer(core::timestamp now, request& r, std::uint64_t query);
  void fail(request& r, std::string message, std::int32_t status, rank_outputs& out);
  void fail_partner(const request& r, std::string_view why, rank_outputs& out);
  void close_query(std::unordered_map<std::int64_t, open_query>::iterator query);
  void set_timer(request& r, std::optional<core::timestamp> at);
  void forget(request& r);
  engine_rank_options options_;
  random_source random_;
  prefix_cache cache_;
  std::unordered_map<std::string, std::unique_ptr<request>> requests_;
  std::deque<request*> waiting_;
  std::vector<request*> running_; ///< in order of admission
  /// By time, then in order of setting, so that equal times give the same order on every run.
  std::map<std::pair<core::timestamp, std::uint64_t>, request*> timers_;
  std::uint64_t timers_set_ = 0;
  std::unordered_map<std::int64_t, request*> rooms_;                ///< prefill rank: requests by room
  std::unordered_map<std::int64_t, open_query> queries_;            ///< prefill rank: asked before the KV was there
  std::deque<std::pair<core::timestamp, std::int64_t>> query_ends_; ///< one per query ever opened, oldest first
  std::uint64_t private_tokens_ = 0;
  std::uint64_t aborts_asked_ = 0; ///< running requests that leave with the next step
  std::uint64_t pd_waiting_ = 0;   ///< requests in awaiting_kv, holding_kv or sending_kv
  std::optional<core::timestamp> step_end_;
  core::duration step_length_{};
  core::timestamp ready_since_{}; ///< when there was work to start a step with
  bool is_frozen_ = false;
  bool stalled_ = false; ///< what waits cannot be admitted and nothing runs: time alone changes nothing
  std::uint64_t requests_seen_ = 0;
  std::uint64_t steps_ = 0;
  measured_step last_step_;
  std::uint64_t retractions_ = 0;
};

} // namespace rankwise::sim
