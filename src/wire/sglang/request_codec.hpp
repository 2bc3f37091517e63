#pragma once

#include "core/request/request.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/wire_error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Requests towards a rank: frames [type byte, payload]. Positions come from the layout that the rank registered; the
/// only constant is that index 0 is the tag.
namespace rankwise::wire::sglang {

/// Where the fields that we send stand in the structs of one rank's release.
class request_layout {
 public:
  /// Errors: missing_field naming "Struct.field" (or the struct alone) when the registered layout lacks one that we
  /// need: of TokenizedGenerateReqInput rid, input_ids, sampling_params, stream and the three bootstrap fields, of
  /// SamplingParams everything that core::sampling_params can ask for.
  [[nodiscard]] static wire_result<request_layout> from_registration(const registration& r);

  /// The ADD payload. `bootstrap` overrides the request's own. The array stops after the last field that has something
  /// to say, so fields that a newer release appended are left to their defaults. Fields in between get the default that
  /// their type demands where we know them and nil where we don't. The pin (`data_parallel_rank`) is not sent: it was
  /// honoured by choosing this rank.
  [[nodiscard]] std::string encode_add(const core::generate_request& request, std::string_view engine_rid,
                                       const std::optional<core::bootstrap_info>& bootstrap) const;

 private:
  /// Position in the array (the tag not counted) -> what to write there: a generate_field or sampling_field of the
  /// source.
  std::vector<std::uint8_t> generate_;
  std::vector<std::uint8_t> sampling_;
};

[[nodiscard]] std::string encode_abort(const std::vector<std::string>& engine_rids);
/// `args` is already msgpack, an array; empty = no arguments. Methods of the plugin: flush_cache, start_profile,
/// stop_profile.
[[nodiscard]] std::string encode_control(std::int64_t call_id, std::string_view method, std::string_view args = {});

// -- the engine's side, for simulated ranks --------------------------------------------------------------------------

struct add_request {
  std::string rid;
  std::vector<std::int32_t> input_ids;
  std::int32_t max_new_tokens = 128;
  std::int32_t n = 1;
  bool ignore_eos = false;
  bool stream = true;
  std::optional<core::bootstrap_info> bootstrap;
};
struct abort_request {
  std::vector<std::string> rids;
};
struct control_request {
  std::int64_t call_id = 0;
  std::string method;
};
using engine_command = std::variant<add_request, abort_request, control_request>;

inline constexpr std::uint32_t input_ids_max = 4'194'304; ///< tokens of one prompt
inline constexpr std::uint32_t abort_rids_max = 65'536;

/// Finds the fields of an ADD by the layout that this engine registered. Keep one per rank.
class command_decoder {
 public:
  /// Errors: missing_field, as request_layout::from_registration.
  [[nodiscard]] static wire_result<command_decoder> from_registration(const registration& own);

  /// Reads what `encode_*` and other front ends write: token ids as a plain array or ["q", bin] of little-endian int64.
  /// `type` is the first frame's byte: 0 ADD, 1 ABORT, 2 CONTROL; any other is unknown_tag.
  [[nodiscard]] wire_result<engine_command> decode(std::uint8_t type, std::string_view payload) const;

 private:
  std::vector<std::uint8_t> generate_;
  std::vector<std::uint8_t> sampling_;
};

/// One call for tests and fuzzing: builds the decoder and uses it once.
[[nodiscard]] wire_result<engine_command> decode_command(std::uint8_t type, std::string_view payload,
                                                         const registration& own_registration);

/// The rid of an ADD that could not be decoded, read loosely, so that it can still be answered. nullopt: none to be
/// found.
[[nodiscard]] std::optional<std::string> peek_add_rid(std::string_view payload);

} // namespace rankwise::wire::sglang
