#pragma once

#include "core/base/bootstrap_info.hpp"
#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/base/time.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What the owner of a request and the controller of a pool say to each other about one leg of it. A leg is known by
/// its handle: a request has at most one leg in a pool. None of these values holds a prompt: the controller's cost does
/// not depend on how long prompts are.
namespace rankwise::core {

/// "Give this leg a rank."
struct place_order {
  request_handle handle = 0;
  std::uint32_t attempt = 0; ///< 0 for the first placement of the request, then 1, 2 ...
  std::uint32_t sample = 0;  ///< which of the request's n samples, from 0
  bool of_pair = false; ///< a leg of a prefill/decode pair that this node makes; a decode leg of one never waits for a
                        ///< better rank, since its prefill rank would stand idle meanwhile
  std::string rid;      ///< the client's, for an operator who asks why it went where it went
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_new_tokens = 0; ///< the most that it may generate
  std::int32_t priority = 0;        ///< its class among those who wait; a higher one goes first
  std::optional<timestamp> deadline;
  std::optional<timestamp> first_token_by;
  std::optional<std::int32_t> data_parallel_rank; ///< a pin to one rank of the pool that decodes
  std::optional<bootstrap_info> bootstrap;        ///< set when a gateway pairs the legs itself
  /// Hash of each full block of the prompt, chained (block_hashes.hpp); empty = equal beginnings are not looked for.
  std::vector<std::uint64_t> blocks;
  timestamp received_at{}; ///< when its front took the request; the origin = not known

  /// Tokens that the leg may take at the most: what a pool's cap on tokens in flight counts.
  [[nodiscard]] std::uint64_t limit_tokens() const noexcept { return prompt_tokens + max_new_tokens; }

  friend bool operator==(const place_order&, const place_order&) = default;
};

/// By what a leg got its rank.
enum class placement_rule : std::uint8_t { policy = 0, data_parallel_rank = 1, bootstrap_room = 2 };
inline constexpr std::uint8_t placement_rule_count = 3;
[[nodiscard]] std::string_view to_string(placement_rule r) noexcept;

/// A leg was given a rank and is charged to it. Its owner sends it there.
struct placement {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  rank_id rank;
  rank_epoch epoch = 0;
  controller_term term = 0;   ///< of the controller that decided; an owner drops placements of an earlier one
  std::uint32_t dp_size = 1;  ///< ranks of the pool, by which its engines reduce bootstrap rooms
  std::string bootstrap_host; ///< of a prefill pool: where its ranks hand KV over
  std::int32_t bootstrap_port = 0;
  placement_rule rule = placement_rule::policy;
};

/// A leg got no rank.
struct refusal {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint16_t pool = 0;
  failure reason = failure::none;
  std::string text; ///< for the client: names what is full, or the field and its value
};

/// The leg is over for its owner: its charge is dropped. An end of an attempt that is not charged does nothing.
struct end_order {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t generated = 0; ///< tokens that its stream got from it
};

/// What one owner asks of one pool; carried out in the order of the members.
struct pool_orders {
  owner_id owner = 0;
  std::vector<request_handle> releases; ///< prefill charges given back while their legs go on
  std::vector<end_order> ends;
  std::vector<place_order> places;

  [[nodiscard]] bool empty() const noexcept { return releases.empty() && ends.empty() && places.empty(); }
};

/// What one engine batch meant for the charges of one owner on one rank.
struct batch_progress {
  rank_id rank;
  rank_epoch epoch = 0;
  owner_id owner = 0;
  std::uint64_t batch = 0; ///< number of the engine batch; parts of one batch that went to several owners share it
  std::vector<request_handle> first_tokens; ///< legs whose prompt is prefilled from now on
  std::vector<std::uint32_t> first_cached;  ///< of each of these, the prompt tokens that the rank's cache had
  std::vector<request_handle> ended;        ///< legs that the engine ended
  std::vector<std::uint32_t> ended_tokens;  ///< of each of these, the tokens that it generated; may be empty
  std::uint32_t errors = 0;                 ///< of `ended`: those that the engine ended with an error of its own
  std::uint64_t generated_tokens = 0;       ///< tokens generated so far by all legs of this owner that are on the rank
};

/// One charged leg as its owner can tell it again, for a controller that rebuilds its ledger.
struct leg_record {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  rank_id rank;
  rank_epoch epoch = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t limit_tokens = 0; ///< the prompt and the most that it may generate
  bool prefilled = false;         ///< its first token was seen
  bool released = false;          ///< its prefill charge was given back at the partner's first token
};

/// All legs that an owner has placed in a pool, after a restart of the pool's controller.
struct owner_legs {
  owner_id owner = 0;
  std::vector<leg_record> legs;
};

} // namespace rankwise::core
