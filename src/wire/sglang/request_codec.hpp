#pragma once

#include "core/request.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/wire_error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Requests towards a rank: frames [type byte, payload]. Positions come from the layout that the rank registered; the only
/// constant is that index 0 is the tag.
namespace rankwise::wire::sglang {

/// Where the fields that we send stand in the structs of one rank's release.
class request_layout {
public:
  /// Errors: missing_field naming "Struct.field" when the registered layout lacks a field that we need.
  [[nodiscard]] static wire_result<request_layout> from_registration(const registration& r);

  /// The ADD payload. `sample_seed` is ignored when empty; `bootstrap` overrides the request's own.
  [[nodiscard]] std::string encode_add(const core::generate_request& request, std::string_view engine_rid,
                                       const std::optional<core::bootstrap_info>& bootstrap) const;

private:
  struct positions;
  std::vector<std::int16_t> generate_; ///< position in the array -> which of our fields, -1 = nil
  std::vector<std::int16_t> sampling_;
};

[[nodiscard]] std::string encode_abort(const std::vector<std::string>& engine_rids);
/// args is already msgpack; empty = no arguments.
[[nodiscard]] std::string encode_control(std::string_view call_id, std::string_view method, std::string_view args = {});

// -- the engine's side, for simulated ranks --------------------------------------------------------------------------

struct add_request {
  std::string rid;
  std::vector<std::int32_t> input_ids;
  std::int32_t max_new_tokens = 128;
  bool ignore_eos = false;
  bool stream = true;
  std::optional<core::bootstrap_info> bootstrap;
};
struct abort_request {
  std::vector<std::string> rids;
};
struct control_request {
  std::string call_id; ///< as it came, msgpack bytes, so that the reply can carry it back untouched
  std::string method;
};
using engine_command = std::variant<add_request, abort_request, control_request>;

/// Reads what `encode_*` writes, for a rank that registered `layout`; a plain array or ["q", bin] of token ids.
[[nodiscard]] wire_result<engine_command> decode_command(std::uint8_t type, std::string_view payload,
                                                         const registration& own_registration);

/// The layout of SGLang 0.5.23 (49 fields of TokenizedGenerateReqInput, SamplingParams with watermark at 26), which simulated
/// ranks register.
[[nodiscard]] std::map<std::string, std::vector<std::string>> sglang_0_5_23_layouts();

} // namespace rankwise::wire::sglang
