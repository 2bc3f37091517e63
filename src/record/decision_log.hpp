#pragma once

#include "core/placement/decision_recorder.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

/// The decision log: every input of one or more pool_controllers, and every decision, as lines of JSON. It holds
/// lengths, times, handles and hashes of blocks, and no token of anybody's prompt. See docs/placement.md.
namespace rankwise::record {

inline constexpr int decision_log_version = 1;

/// Where lines go. Must not throw, nor wait.
class line_sink {
 public:
  virtual ~line_sink() = default;
  /// Without its end of line.
  virtual void write(std::string&& line) noexcept = 0;
  /// There was no memory for a line; what follows cannot be replayed.
  virtual void lose() noexcept = 0;
};

/// Writes what one controller is told and decides. Lines of several may mix in one sink: each names its controller.
class decision_writer final : public core::decision_recorder {
 public:
  decision_writer(line_sink& sink, std::uint32_t controller) : sink_(sink), controller_(controller) {}

  void opened(const core::pool_options& options) noexcept override;
  void rank_up(const core::rank_announcement& rank, core::timestamp now) noexcept override;
  void rank_paused(core::rank_id rank, core::rank_epoch epoch, core::rank_state state) noexcept override;
  void rank_down(core::rank_id rank, core::rank_epoch epoch, core::rank_state state) noexcept override;
  void progress(const core::batch_progress& p, core::timestamp now) noexcept override;
  void ejections_over(core::timestamp now) noexcept override;
  void released(core::request_handle handle, core::timestamp now) noexcept override;
  void ended(core::request_handle handle, core::timestamp now, std::uint32_t generated) noexcept override;
  void owner_gone(core::owner_id owner, core::timestamp now) noexcept override;
  void reported(const core::load_report& report) noexcept override;
  void restored(const std::vector<core::leg_record>& legs, core::timestamp now) noexcept override;
  void policy_set(std::string_view policy, core::timestamp now) noexcept override;
  void decided(const core::leg_request& leg, const core::placement_decision& d) noexcept override;

 private:
  void rank_state_line(const char* kind, core::rank_id rank, core::rank_epoch epoch, core::rank_state state) noexcept;
  template <class F>
  void line(const char* kind, F&& fill) noexcept;

  line_sink& sink_;
  std::uint32_t controller_;
  core::request_handle blocks_of_ = 0; // whose blocks were written last
};

/// Of a line's values. Reading throws nlohmann::json::exception where one is missing or has the wrong type.
nlohmann::json to_json(const core::pool_options& options);
core::pool_options pool_options_of(const nlohmann::json& j);

} // namespace rankwise::record
