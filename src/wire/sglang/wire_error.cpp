#include "wire/sglang/wire_error.hpp"

namespace rankwise::wire::sglang {

std::string_view to_string(wire_error_kind kind) noexcept {
  switch (kind) {
  case wire_error_kind::truncated:
    return "truncated";
  case wire_error_kind::not_an_array:
    return "not_an_array";
  case wire_error_kind::unknown_tag:
    return "unknown_tag";
  case wire_error_kind::wrong_type:
    return "wrong_type";
  case wire_error_kind::column_length:
    return "column_length";
  case wire_error_kind::too_large:
    return "too_large";
  case wire_error_kind::trailing_bytes:
    return "trailing_bytes";
  case wire_error_kind::missing_field:
    return "missing_field";
  case wire_error_kind::bad_status:
    return "bad_status";
  case wire_error_kind::not_msgpack:
    return "not_msgpack";
  }
  return "unknown";
}

std::string to_string(const wire_error& error) {
  std::string text(to_string(error.kind));
  if (!error.field.empty()) {
    text += ' ';
    text += error.field;
  }
  if (!error.value.empty()) {
    text += ": ";
    text += error.value;
  }
  return text;
}

} // namespace rankwise::wire::sglang
