#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// How much one client may make a server do without asking for anything.
namespace rankwise::io::grpc {

/// `burst` frames at once, and `per_s` more each second.
struct frame_allowance {
  std::uint32_t burst = 0;
  std::uint32_t per_s = 0;
};

/// Of one connection. What goes beyond a limit ends the connection: GOAWAY with ENHANCE_YOUR_CALM and the name of the
/// flood as debug data.
struct flood_limits {
  /// gRPC's rule for keepalive: PINGs that come sooner than this after the last one are strikes, unless something was
  /// sent to the client between them. Clients may keep alive every 10 s; the network shifts their PINGs.
  std::chrono::milliseconds ping_interval_min{9'000};
  std::uint32_t ping_strikes_max = 2;
  frame_allowance control{100, 10};       ///< SETTINGS, their answers, answers to PINGs, GOAWAY.
  frame_allowance empty_data{1'000, 100}; ///< DATA that carries nothing and ends nothing.
  frame_allowance priorities{1'000, 100};
  /// WINDOW_UPDATE; every stream that is opened and every DATA frame that is sent allow four more.
  frame_allowance window_updates{10'000, 1'000};
  frame_allowance resets{20'000, 5'000}; ///< RST_STREAM, and frames that made the server reset their stream.
  /// Frames that wait for a client which does not read, beside the data of its streams.
  std::size_t unread_frames_max = 65'536;
};

enum class flood_kind : std::uint8_t { pings, control, empty_data, priorities, window_updates, resets, unread };
inline constexpr std::size_t flood_kind_count = 7;

/// The debug data of the GOAWAY, and the label of the metric: "too_many_pings", as gRPC clients know it, ...
[[nodiscard]] std::string_view to_string(flood_kind kind) noexcept;

/// Counts one connection's frames. Each `took_...` returns false when its limit is exceeded.
class flood_guard {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  flood_guard(const flood_limits& limits, time_point now) noexcept;

  [[nodiscard]] bool took_ping(time_point now) noexcept;
  [[nodiscard]] bool took_frame(flood_kind kind, time_point now) noexcept;
  void stream_opened() noexcept { allow_window_updates(); }
  /// HEADERS or DATA left for the client.
  void sent_to_client() noexcept {
    sent_since_ping_ = true;
    allow_window_updates();
  }

 private:
  struct bucket {
    std::uint64_t left = 0; ///< In thousandths of a frame.
    time_point filled{};
  };

  void allow_window_updates() noexcept;
  [[nodiscard]] const frame_allowance& allowance(flood_kind kind) const noexcept;

  const flood_limits& limits_;
  std::array<bucket, flood_kind_count> buckets_{};
  time_point last_ping_{};
  std::uint32_t strikes_ = 0;
  bool pinged_ = false;
  bool sent_since_ping_ = false;
};

} // namespace rankwise::io::grpc
