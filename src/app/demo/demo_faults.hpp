#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace rankwise::app {

enum class fault_kind : std::uint8_t { crash, kill, freeze };

/// One fault of `rankwise demo --fault`:
///   crash:ROLE[/POOL[/RANK]]@2s        the actor throws; ROLE is load_forwarder, dp_controller, dp_rank,
///   request_manager ... crash:load_forwarder@2s+10s*10     ten times a second, from 2 s on, for 10 s kill:decode/3@4s
///   SIGKILL to the engine process of that rank freeze:decode/2@5s+2s              SIGSTOP, and SIGCONT two seconds
///   later
struct demo_fault {
  fault_kind kind = fault_kind::crash;
  std::string role; ///< of a crash
  std::string pool;
  std::uint16_t rank = 0;
  double at_s = 0;
  double for_s = 0;
  double per_s = 0; ///< of repeated crashes; 0 = once
  std::string text; ///< as given
};

/// Errors: a sentence that names the text and what is wrong with it.
[[nodiscard]] tl::expected<demo_fault, std::string> parse_fault(std::string_view text);

/// When something has to be done about a fault, in order of time.
struct fault_action {
  enum class what : std::uint8_t { crash, kill, stop, resume };
  double at_s = 0;
  what act = what::crash;
  const demo_fault* fault = nullptr;
};
[[nodiscard]] std::vector<fault_action> schedule(const std::vector<demo_fault>& faults);

} // namespace rankwise::app
