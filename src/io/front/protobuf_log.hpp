#pragma once

#include <string>

/// protobuf refuses a string field that is not UTF-8 with a line on standard error and nothing else. These functions
/// keep that line off the log, which a client could flood, and find the field's name in it.
namespace rankwise::io::front {

/// Replaces protobuf's log handler, for the whole process.
void catch_protobuf_complaints();

/// Of this thread.
void forget_protobuf_complaint() noexcept;

/// Path of the field in the last complaint of this thread about a string that is not UTF-8, without the package and the
/// message: "request_id", "SamplingParams.stop". Empty: there was none.
[[nodiscard]] std::string protobuf_complaint_field();

} // namespace rankwise::io::front
