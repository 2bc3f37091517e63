#include "wire/msgpack_tree.hpp"
#include "wire/msgpack_visitor.hpp"
#include "wire/sglang/request_codec.hpp"
#include "wire/sglang/request_fields.hpp"

#include <limits>
#include <utility>

namespace rankwise::wire::sglang {

namespace {

constexpr std::uint32_t command_depth_max = 32;

request_field field_at(const std::vector<std::uint8_t>& layout, std::size_t position) noexcept {
  return position < layout.size() ? static_cast<request_field>(layout[position]) : request_field::nil;
}

/// Little-endian int64, as Python's array('q').tobytes() gives on the machines that SGLang runs on.
std::int64_t read_int64(const char* bytes) noexcept {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return static_cast<std::int64_t>(value);
}

class add_visitor : public bounded_visitor {
 public:
  add_visitor(std::size_t frame_bytes, const std::vector<std::uint8_t>& generate,
              const std::vector<std::uint8_t>& sampling)
      : bounded_visitor(frame_bytes), generate_(generate), sampling_(sampling) {}

  bool visit_nil() { return in_ids() ? wrong_type() : value_done(); }

  bool visit_boolean(bool value) {
    if (depth_ == 1 && field() == request_field::stream) {
      add_.stream = value;
    } else if (in_sampling() && sampling_field() == request_field::ignore_eos) {
      add_.ignore_eos = value;
    } else {
      return other_value();
    }
    return value_done();
  }

  bool visit_positive_integer(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return wanted() ? fail(wire_error_kind::too_large, where()) : value_done();
    }
    return number(static_cast<std::int64_t>(value));
  }
  bool visit_negative_integer(std::int64_t value) { return number(value); }

  bool visit_float32(float) { return other_value(); }
  bool visit_float64(double) { return other_value(); }
  bool visit_ext(const char*, std::uint32_t) { return other_value(); }

  bool visit_str(const char* data, std::uint32_t size) {
    const std::string_view text(data, size);
    if (depth_ == 1 && position_ == 0) {
      return text == generate_struct ? value_done() : fail(wire_error_kind::unknown_tag, text.substr(0, 64));
    }
    if (in_ids() && add_.input_ids.empty() && text == "q") {
      ids_as_bytes_ = true;
      return true;
    }
    if (depth_ == 1 && field() == request_field::rid) {
      add_.rid = text;
    } else if (depth_ == 1 && field() == request_field::bootstrap_host) {
      bootstrap().host = text;
    } else {
      return other_value();
    }
    return value_done();
  }

  bool visit_bin(const char* data, std::uint32_t size) {
    if (!in_ids() || !ids_as_bytes_) {
      return other_value();
    }
    if (size % 8 != 0) {
      return wrong_type();
    }
    if (size / 8 > input_ids_max) {
      return fail(wire_error_kind::too_large, where());
    }
    add_.input_ids.reserve(size / 8);
    for (std::uint32_t at = 0; at < size; at += 8) {
      if (!token(read_int64(data + at))) {
        return false;
      }
    }
    return true;
  }

  bool start_array(std::uint32_t size) {
    if (!can_hold(size)) {
      return fail(wire_error_kind::truncated, where());
    }
    if (depth_ == 0) {
      position_ = 0;
    } else if (depth_ == 1 && field() == request_field::input_ids) {
      if (size > input_ids_max) {
        return fail(wire_error_kind::too_large, where());
      }
      add_.input_ids.reserve(size);
    } else if (depth_ == 1 && field() == request_field::sampling_params) {
      sampling_position_ = 0;
    } else if (position_ == 0 || wanted()) {
      return wrong_type();
    }
    return deeper();
  }

  bool start_map(std::uint32_t size) {
    if (!can_hold(size)) {
      return fail(wire_error_kind::truncated, where());
    }
    if (depth_ == 0) {
      return fail(wire_error_kind::not_an_array, {});
    }
    if (position_ == 0 || wanted()) {
      return wrong_type();
    }
    return deeper();
  }

  bool end_array() { return end(); }
  bool end_map() { return end(); }

  wire_result<engine_command> take() {
    if (position_ == 0) {
      return tl::unexpected(wire_error{wire_error_kind::unknown_tag, {}});
    }
    if (add_.rid.empty()) {
      return tl::unexpected(wire_error{wire_error_kind::missing_field, "TokenizedGenerateReqInput.rid"});
    }
    return engine_command(std::move(add_));
  }

 private:
  [[nodiscard]] request_field field() const noexcept {
    return position_ == 0 ? request_field::nil : field_at(generate_, position_ - 1);
  }
  [[nodiscard]] request_field sampling_field() const noexcept { return field_at(sampling_, sampling_position_); }
  [[nodiscard]] bool in_ids() const noexcept { return depth_ == 2 && field() == request_field::input_ids; }
  [[nodiscard]] bool in_sampling() const noexcept { return depth_ == 2 && field() == request_field::sampling_params; }

  /// Whether the value that comes next is one that we read.
  [[nodiscard]] bool wanted() const noexcept {
    if (depth_ == 1) {
      return field() >= request_field::rid;
    }
    if (in_sampling()) {
      const request_field f = sampling_field();
      return f == request_field::max_new_tokens || f == request_field::ignore_eos || f == request_field::n;
    }
    return in_ids();
  }

  [[nodiscard]] std::string_view where() const noexcept {
    switch (field()) {
    case request_field::rid:
      return "TokenizedGenerateReqInput.rid";
    case request_field::input_ids:
      return "TokenizedGenerateReqInput.input_ids";
    case request_field::sampling_params:
      return "TokenizedGenerateReqInput.sampling_params";
    case request_field::stream:
      return "TokenizedGenerateReqInput.stream";
    case request_field::bootstrap_host:
    case request_field::bootstrap_port:
    case request_field::bootstrap_room:
      return "TokenizedGenerateReqInput.bootstrap";
    default:
      return generate_struct;
    }
  }

  bool wrong_type() { return fail(wire_error_kind::wrong_type, where()); }

  bool other_value() {
    if (depth_ == 0) {
      return fail(wire_error_kind::not_an_array, {});
    }
    if (position_ == 0) {
      return fail(wire_error_kind::unknown_tag, {});
    }
    return wanted() ? wrong_type() : value_done();
  }

  bool value_done() {
    if (depth_ == 0) {
      return fail(wire_error_kind::not_an_array, {});
    }
    if (depth_ == 1) {
      ++position_;
    } else if (in_sampling()) {
      ++sampling_position_;
    }
    return true;
  }

  bool deeper() {
    ++depth_;
    return depth_ <= command_depth_max || fail(wire_error_kind::too_large, where());
  }

  bool end() {
    --depth_;
    return depth_ == 0 || value_done();
  }

  bool token(std::int64_t value) {
    if (std::cmp_greater(value, std::numeric_limits<std::int32_t>::max()) ||
        std::cmp_less(value, std::numeric_limits<std::int32_t>::min())) {
      return fail(wire_error_kind::too_large, where());
    }
    add_.input_ids.push_back(static_cast<std::int32_t>(value));
    return true;
  }

  bool small(std::int64_t value, std::int32_t& into) {
    if (!std::in_range<std::int32_t>(value)) {
      return fail(wire_error_kind::too_large, where());
    }
    into = static_cast<std::int32_t>(value);
    return value_done();
  }

  bool number(std::int64_t value) {
    if (in_ids()) {
      return !ids_as_bytes_ ? token(value) : wrong_type();
    }
    if (in_sampling()) {
      switch (sampling_field()) {
      case request_field::max_new_tokens:
        return small(value, add_.max_new_tokens);
      case request_field::n:
        return small(value, add_.n);
      default:
        return other_value();
      }
    }
    if (depth_ == 1) {
      switch (field()) {
      case request_field::bootstrap_port:
        return small(value, bootstrap().port);
      case request_field::bootstrap_room:
        bootstrap().room = value;
        return value_done();
      default:
        return other_value();
      }
    }
    return other_value();
  }

  core::bootstrap_info& bootstrap() { return add_.bootstrap ? *add_.bootstrap : add_.bootstrap.emplace(); }

  const std::vector<std::uint8_t>& generate_;
  const std::vector<std::uint8_t>& sampling_;
  std::size_t position_ = 0;
  std::size_t sampling_position_ = 0;
  bool ids_as_bytes_ = false;
  add_request add_;
};

class abort_visitor : public bounded_visitor {
 public:
  using bounded_visitor::bounded_visitor;

  bool visit_nil() { return wrong_type(); }
  bool visit_boolean(bool) { return wrong_type(); }
  bool visit_positive_integer(std::uint64_t) { return wrong_type(); }
  bool visit_negative_integer(std::int64_t) { return wrong_type(); }
  bool visit_float32(float) { return wrong_type(); }
  bool visit_float64(double) { return wrong_type(); }
  bool visit_bin(const char*, std::uint32_t) { return wrong_type(); }
  bool visit_ext(const char*, std::uint32_t) { return wrong_type(); }
  bool start_map(std::uint32_t) { return wrong_type(); }

  bool visit_str(const char* data, std::uint32_t size) {
    if (depth_ != 1) {
      return wrong_type();
    }
    abort.rids.emplace_back(data, size);
    return true;
  }
  bool start_array(std::uint32_t size) {
    if (depth_++ != 0) {
      return wrong_type();
    }
    if (size > abort_rids_max) {
      return fail(wire_error_kind::too_large, "rids");
    }
    if (!can_hold(size)) {
      return fail(wire_error_kind::truncated, "rids");
    }
    abort.rids.reserve(size);
    return true;
  }

  abort_request abort;

 private:
  bool wrong_type() { return fail(depth_ == 0 ? wire_error_kind::not_an_array : wire_error_kind::wrong_type, "rids"); }
};

wire_result<engine_command> decode_abort(std::string_view payload) {
  abort_visitor visitor(payload.size());
  if (const auto parsed = parse_frame(payload, visitor); !parsed) {
    return tl::unexpected(parsed.error());
  }
  return engine_command(std::move(visitor.abort));
}

wire_result<engine_command> decode_control(std::string_view payload) {
  const auto tree = unpack_bounded(payload);
  if (!tree) {
    return tl::unexpected(tree.error());
  }
  const msgpack::object& call = tree->get();
  if (call.type != msgpack::type::ARRAY) {
    return tl::unexpected(wire_error{wire_error_kind::not_an_array, {}});
  }
  const auto& parts = call.via.array;
  if (parts.size != 3) {
    return tl::unexpected(wire_error{wire_error_kind::column_length, "control"});
  }
  const bool id_fits =
      parts.ptr[0].type == msgpack::type::NEGATIVE_INTEGER ||
      (parts.ptr[0].type == msgpack::type::POSITIVE_INTEGER && std::in_range<std::int64_t>(parts.ptr[0].via.u64));
  if (!id_fits) {
    return tl::unexpected(wire_error{wire_error_kind::wrong_type, "call_id"});
  }
  if (parts.ptr[1].type != msgpack::type::STR) {
    return tl::unexpected(wire_error{wire_error_kind::wrong_type, "method"});
  }
  if (parts.ptr[2].type != msgpack::type::ARRAY) {
    return tl::unexpected(wire_error{wire_error_kind::wrong_type, "args"});
  }
  return engine_command(
      control_request{parts.ptr[0].via.i64, std::string(parts.ptr[1].via.str.ptr, parts.ptr[1].via.str.size)});
}

class rid_visitor : public bounded_visitor {
 public:
  using bounded_visitor::bounded_visitor;

  bool visit_str(const char* data, std::uint32_t size) {
    if (depth_ == 1 && position_ == 1) {
      rid.emplace(data, size);
    }
    return value_done();
  }
  bool visit_nil() { return value_done(); }
  bool visit_boolean(bool) { return value_done(); }
  bool visit_positive_integer(std::uint64_t) { return value_done(); }
  bool visit_negative_integer(std::int64_t) { return value_done(); }
  bool visit_float32(float) { return value_done(); }
  bool visit_float64(double) { return value_done(); }
  bool visit_bin(const char*, std::uint32_t) { return value_done(); }
  bool visit_ext(const char*, std::uint32_t) { return value_done(); }
  bool start_array(std::uint32_t) { return depth_++ == 0 || stop(); }
  bool start_map(std::uint32_t) { return stop(); }

  std::optional<std::string> rid;

 private:
  bool value_done() { return ++position_ < 2 || stop(); }
  std::size_t position_ = 0;
};

} // namespace

wire_result<command_decoder> command_decoder::from_registration(const registration& own) {
  auto generate = generate_positions(own);
  if (!generate) {
    return tl::unexpected(generate.error());
  }
  auto sampling = sampling_positions(own);
  if (!sampling) {
    return tl::unexpected(sampling.error());
  }
  command_decoder decoder;
  decoder.generate_ = std::move(*generate);
  decoder.sampling_ = std::move(*sampling);
  return decoder;
}

wire_result<engine_command> command_decoder::decode(std::uint8_t type, std::string_view payload) const {
  switch (type) {
  case 0: {
    add_visitor visitor(payload.size(), generate_, sampling_);
    if (const auto parsed = parse_frame(payload, visitor); !parsed) {
      return tl::unexpected(parsed.error());
    }
    return visitor.take();
  }
  case 1:
    return decode_abort(payload);
  case 2:
    return decode_control(payload);
  default:
    return tl::unexpected(wire_error{wire_error_kind::unknown_tag, "request type " + std::to_string(type)});
  }
}

wire_result<engine_command> decode_command(std::uint8_t type, std::string_view payload,
                                           const registration& own_registration) {
  const auto decoder = command_decoder::from_registration(own_registration);
  if (!decoder) {
    return tl::unexpected(decoder.error());
  }
  return decoder->decode(type, payload);
}

std::optional<std::string> peek_add_rid(std::string_view payload) {
  rid_visitor visitor(payload.size());
  // A fault behind the rid does not matter here.
  static_cast<void>(parse_frame(payload, visitor));
  return visitor.rid;
}

} // namespace rankwise::wire::sglang
