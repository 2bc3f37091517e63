#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string_view>

/// The names by which the parts of a node speak of pools, ranks and requests.
namespace rankwise::core {

/// What the ranks of a pool do. `unified` ranks prefill and decode.
enum class pool_role : std::uint8_t { unified = 0, prefill = 1, decode = 2 };
inline constexpr std::uint8_t pool_role_count = 3;

[[nodiscard]] constexpr std::string_view to_string(pool_role role) noexcept {
  switch (role) {
  case pool_role::unified:
    return "unified";
  case pool_role::prefill:
    return "prefill";
  case pool_role::decode:
    return "decode";
  }
  return "unknown";
}

/// One data-parallel rank: the pool (index in the node's configuration) and the rank's number inside it, which is the
/// identity under which it dials in.
struct rank_id {
  std::uint16_t pool = 0;
  std::uint16_t rank = 0;
  friend auto operator<=>(const rank_id&, const rank_id&) = default;
};

/// Incarnation of a rank. Starts at 1 with the first HELLO and is raised each time its link is (re)established; 0 is
/// "none".
using rank_epoch = std::uint32_t;

/// A request inside this process: never reused while the process lives. The low 24 bits are the slot of
/// RequestManager's table, the 40 bits above count up. 0 is "none".
using request_handle = std::uint64_t;

/// Which start of the node this is, as counted by its state file: 1, 2, ...; 0 = it keeps no state file. Requests of an
/// earlier one that an engine still runs are known by it.
using node_boot = std::uint32_t;

/// A front's own name for one client stream; opaque to everything behind the front.
using stream_id = std::uint64_t;

} // namespace rankwise::core

template <>
struct std::hash<rankwise::core::rank_id> {
  std::size_t operator()(const rankwise::core::rank_id& id) const noexcept {
    return (static_cast<std::size_t>(id.pool) << 16) | id.rank;
  }
};
