#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// How a request ends, exactly once. Apart from errors of the program: these are facts told to the client.
namespace rankwise::core {

enum class outcome_kind : std::uint8_t {
  completed = 0, ///< The engine said stop or length.
  failed = 1,    ///< Accepted, but could not be finished; `failure` says why.
  cancelled = 2, ///< The client left, asked for it, or its deadline passed.
  refused = 3,   ///< Never accepted; `failure` says why.
};

/// Why a request failed, was refused or was cancelled. Numbers are pinned: they appear in messages, logs and metrics.
enum class failure : std::uint8_t {
  none = 0,
  invalid_argument = 1,           ///< The request itself is wrong; the text names the field and the value.
  duplicate_rid = 2,              ///< A request with this rid is in flight on this node.
  requests_in_flight_max = 3,     ///< The pool's cap on requests in flight is reached.
  tokens_in_flight_max = 4,       ///< The pool's cap on tokens in flight is reached.
  no_rank_available = 5,          ///< No rank of the pool can take work.
  pinned_rank_unavailable = 6,    ///< The rank that the request is pinned to cannot take work.
  rank_queue_full = 7,            ///< The bounded queue towards the chosen rank is full.
  rank_lost = 8,                  ///< The rank died, froze or was replaced while the request ran on it.
  engine_error = 9,               ///< The engine ended the request with an error of its own; the text is the engine's.
  engine_aborted = 10,            ///< The engine ended the request without being asked and without an error status.
  deadline_exceeded = 11,         ///< The client's deadline, or the node's own limit for one request, has passed.
  client_cancelled = 12,          ///< The client closed its stream or its connection.
  aborted_by_request = 13,        ///< Abort was called for the rid.
  slow_client = 14,               ///< The client did not read its stream for too long.
  partner_leg_failed = 15,        ///< The other leg of a prefill/decode pair failed.
  request_manager_restarted = 16, ///< The actor that owned the request was restarted.
  shutting_down = 17,             ///< The node is stopping and takes nothing new, or ran out of its drain time.
  unsupported = 18, ///< The request asks for something that this node does not do; the text names the field.
  request_manager_overloaded = 19, ///< The queue of submissions towards RequestManager is full.
  tokens_lost = 20, ///< Tokens that the engine counts never arrived here: the stream ends rather than be short.
};

inline constexpr std::uint8_t failure_count = 21;

/// The name used in metrics, logs and JSON, e.g. "rank_lost".
[[nodiscard]] std::string_view to_string(failure f) noexcept;
[[nodiscard]] std::string_view to_string(outcome_kind k) noexcept;

struct outcome {
  outcome_kind kind = outcome_kind::completed;
  failure reason = failure::none;
  std::string text;               ///< For people: names the field and value, or the rank; empty when completed.
  std::int32_t engine_status = 0; ///< HTTP-like status that the engine gave with an abort; 0 = none.

  friend bool operator==(const outcome&, const outcome&) = default;
};

} // namespace rankwise::core
