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

/// One incarnation of one RequestManager: who a request belongs to from its submission to its outcome. Numbers are
/// given by the Supervisor, count up, and none is used twice in a process; 0 is "none".
using owner_id = std::uint16_t;

/// A request inside this process: never reused while the process lives. From the top: 16 bits of its owner, 28 bits
/// that count how often the slot was used, 20 bits of the slot in the owner's table. 0 is "none". Engine rids carry it,
/// so that every output finds its owner without a look-up.
using request_handle = std::uint64_t;

inline constexpr unsigned handle_slot_bits = 20;
inline constexpr unsigned handle_count_bits = 28;
inline constexpr std::uint32_t handle_slots_max = 1U << handle_slot_bits;
inline constexpr std::uint32_t handle_count_max = (1U << handle_count_bits) - 1;

[[nodiscard]] constexpr request_handle make_handle(owner_id owner, std::uint32_t count, std::uint32_t slot) noexcept {
  return (request_handle{owner} << (handle_count_bits + handle_slot_bits)) |
         (request_handle{count} << handle_slot_bits) | slot;
}
[[nodiscard]] constexpr owner_id owner_of(request_handle handle) noexcept {
  return static_cast<owner_id>(handle >> (handle_count_bits + handle_slot_bits));
}
[[nodiscard]] constexpr std::uint32_t count_of(request_handle handle) noexcept {
  return static_cast<std::uint32_t>(handle >> handle_slot_bits) & handle_count_max;
}
[[nodiscard]] constexpr std::uint32_t slot_of(request_handle handle) noexcept {
  return static_cast<std::uint32_t>(handle) & (handle_slots_max - 1);
}

/// One placement of a request on a rank.
struct leg_id {
  request_handle handle = 0;
  std::uint32_t attempt = 0; ///< 0 for the first placement of the request, then 1, 2 ...
  friend auto operator<=>(const leg_id&, const leg_id&) = default;
};

/// Which start of a pool's DPController decides: placements of an earlier one are void. Counts up from 1.
using controller_term = std::uint32_t;

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
