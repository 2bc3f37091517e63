#pragma once

#include "io/grpc/counter.hpp"
#include "io/grpc/server.hpp"
#include "io/grpc/transport.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

/// Private to src/io/grpc: what the server's loop and its connections share. I/O thread only, but for the counters.
namespace rankwise::io::grpc {

class connection;
class stream;

using steady_time = std::chrono::steady_clock::time_point;

struct live_counters {
  counter connections_accepted, connections_refused, connections_now;
  counter calls_started, calls_refused, calls_cancelled, calls_now;
  counter bytes_read, bytes_written, messages_read, messages_written, writes;
  counter tls_handshakes;
  std::array<counter, tls_failure_count> tls_failures;
  std::array<counter, flood_kind_count> floods;
  counter resets_received, protocol_errors, handler_exceptions, wakes;

  void count(tls_failure why) noexcept { tls_failures[static_cast<std::size_t>(why)].add(); }
};

using any_method = std::variant<unary_method, streaming_method, bidirectional_method>;

struct string_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const noexcept { return std::hash<std::string_view>{}(s); }
};

/// Open calls by id. An id is the slot in the low bits and a count above them, so a lookup is one index and one
/// compare, and an id never comes back.
class call_table {
 public:
  [[nodiscard]] call_id insert(stream* s);
  void erase(call_id id) noexcept;
  [[nodiscard]] stream* find(call_id id) const noexcept;
  /// Brings what find() reads into the cache.
  void prefetch(call_id id) const noexcept {
    if ((id & slot_mask) < slots_.size()) {
      __builtin_prefetch(&slots_[id & slot_mask]);
    }
  }
  /// The handler is kept beside the stream, so that finding it touches one cache line; nullptr = takes nothing (more).
  void set_handler(call_id id, call_handler* handler) noexcept;
  [[nodiscard]] call_handler* handler(call_id id) const noexcept {
    const auto index = id & slot_mask;
    return index < slots_.size() && slots_[index].id == id ? slots_[index].handler : nullptr;
  }

 private:
  static constexpr unsigned slot_bits = 24;
  static constexpr call_id slot_mask = (call_id{1} << slot_bits) - 1;

  struct slot {
    call_id id = 0;
    stream* open = nullptr;
    call_handler* handler = nullptr;
  };
  std::vector<slot> slots_;
  std::vector<std::uint32_t> free_;
  call_id count_ = 0;
};

struct io_context {
  explicit io_context(server_options o) : options(std::move(o)) {}

  const server_options options;
  std::optional<tls_context> tls; ///< nullopt = plaintext.
  std::unordered_map<std::string, any_method, string_hash, std::equal_to<>> methods;
  live_counters counters;
  call_table calls;
  std::multimap<steady_time, call_id> deadlines;
  std::vector<connection*> dirty;           ///< Connections to flush at the end of the round.
  std::size_t unfinished_request_bytes = 0; ///< Held by calls whose request is not complete.
  std::size_t handshake_steps_left = 0;     ///< Of this round, so that handshakes do not hold up the streams.
  std::string scratch;                      ///< The message being pulled.
  steady_time now{};                        ///< Of this round.
};

} // namespace rankwise::io::grpc
