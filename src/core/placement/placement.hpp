#pragma once

#include "core/base/ids.hpp"
#include "core/base/outcome.hpp"
#include "core/request/request.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What RequestManager and a pool's DPController say to each other about one leg of one request. A leg is known by its
/// handle: a request has at most one leg in a pool.
namespace rankwise::core {

/// "Place this." With `hold`, charge a rank but send nothing until `commit_order` (both legs of a pair are reserved
/// first).
struct place_order {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t sample = 0;
  bool hold = false;
  request_ptr request;
};

/// A leg was given a rank and is charged to it.
struct placement {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  rank_id rank;
  rank_epoch epoch = 0;
  std::uint32_t dp_size = 1;  ///< Ranks of the pool, by which its engines reduce bootstrap rooms.
  std::string bootstrap_host; ///< Of a prefill pool: where its ranks hand KV over.
  std::int32_t bootstrap_port = 0;
};

/// A leg got no rank, or lost it before the engine could have had it.
struct refusal {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint16_t pool = 0;
  failure reason = failure::none;
  bool retry = false; ///< Another attempt may succeed: the chosen rank's queue was full.
  std::string text;
};

/// Both legs are reserved: send this one.
struct commit_order {
  request_handle handle = 0;
  bootstrap_info bootstrap;
};

/// The leg is over for RequestManager: drop its charge. With `abort`, the engine is told, exactly once.
struct end_order {
  request_handle handle = 0;
  bool abort = false;
  std::uint32_t generated = 0; ///< tokens that its stream got from it
};

/// What one engine batch meant for the charges of one rank.
struct batch_progress {
  rank_id rank;
  rank_epoch epoch = 0;
  std::vector<request_handle> first_tokens; ///< Legs whose prompt is prefilled from now on.
  std::vector<std::uint32_t> first_cached;  ///< Of each of these, the prompt tokens that the rank's cache had.
  std::vector<request_handle> ended;        ///< Legs that the engine ended.
  std::vector<std::uint32_t> ended_tokens;  ///< Of each of these, the tokens that it generated; may be empty.
  std::uint32_t errors = 0;                 ///< Of `ended`: those that the engine ended with an error of its own.
  std::uint64_t generated_tokens = 0;       ///< Tokens generated so far by all legs that are still on the rank.
};

/// One leg as RequestManager knows it, for a controller that rebuilds its ledger.
struct leg_record {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t sample = 0;
  rank_id rank;
  rank_epoch epoch = 0;
  bool held = false;      ///< Reserved, not sent.
  bool prefilled = false; ///< Its first token was seen.
  bool released = false;  ///< Prefill charge given back at the partner's first token.
  request_ptr request;
};

} // namespace rankwise::core
