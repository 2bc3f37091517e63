#pragma once

#include "core/base/ids.hpp"
#include "sim/engine_rank_model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

/// What `rankwise engine` is told.
namespace rankwise::app {

/// Which of the two known releases the simulated ranks register as.
enum class engine_release : std::uint8_t { sglang_0_5_23, sglang_0_5_21 };

/// How the registered layout departs from the release's.
enum class odd_layout : std::uint8_t {
  none,
  missing,  ///< SamplingParams lacks `temperature`: a node must refuse the rank and name the field
  inserted, ///< a field more in front of others, in both structs: a node must follow the layout
};

enum class load_fault : std::uint8_t { none, absent, garbage };

struct engine_faults {
  sim::misbehaviour model;
  bool crash_at_start = false;            ///< exits right after it has registered
  std::uint64_t crash_after_requests = 0; ///< 0 = never
  load_fault load = load_fault::none;
  odd_layout layout = odd_layout::none;
};

struct engine_options {
  std::string handshake_endpoint;
  std::uint16_t ranks = 1;
  std::uint16_t first_rank = 0;
  std::uint16_t data_parallel_size =
      0; ///< as registered; 0 = `ranks`: an engine of its own, whose index is `first_rank`
  core::pool_role role = core::pool_role::unified;
  std::string bootstrap_host = "127.0.0.1"; ///< where prefill ranks listen
  std::uint16_t bootstrap_port = 0; ///< prefill rank i listens on bootstrap_port + i; required for a prefill rank
  std::uint16_t prefill_ranks = 1;  ///< decode: rank room mod prefill_ranks holds the KV of a room
  std::uint64_t max_model_len = 131'072;
  double handshake_wait_s = 600; ///< as the plugin; not scaled
  engine_release release = engine_release::sglang_0_5_23;
  sim::engine_rank_options model; ///< role and faults are taken from here, above and below
  std::string model_name;         ///< what the ranks register that they serve; empty: they do not say
  bool lockstep = false;
  engine_faults faults;
  std::optional<std::uint16_t> fault_rank; ///< only this rank misbehaves; none = all of them
  std::uint64_t seed = 1;
  bool quiet = false;
  bool die_with_parent = false;
};

/// Adds one fault in the notation of --fault, e.g. "slow=3". Errors: a sentence that names the text.
[[nodiscard]] tl::expected<void, std::string> add_fault(engine_faults& faults, std::string_view text);

} // namespace rankwise::app
