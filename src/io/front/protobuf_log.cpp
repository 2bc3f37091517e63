#include "io/front/protobuf_log.hpp"

#include <google/protobuf/stubs/logging.h>

#include <string_view>

namespace rankwise::io::front {

namespace {

thread_local std::string last_complaint;

void keep(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  last_complaint = text;
}

} // namespace

void catch_protobuf_complaints() {
  google::protobuf::SetLogHandler(&keep);
}

void forget_protobuf_complaint() noexcept {
  last_complaint.clear();
}

std::string protobuf_complaint_field() {
  // "String field 'sglang.grpc.scheduler.GenerateRequest.request_id' contains invalid UTF-8 data when parsing ..."
  constexpr std::string_view begin = "String field '";
  constexpr std::string_view request = "GenerateRequest.";
  const std::string_view text{last_complaint};
  const auto at = text.find(begin);
  if (at == std::string_view::npos || text.find("UTF-8") == std::string_view::npos) {
    return {};
  }
  auto name = text.substr(at + begin.size());
  name = name.substr(0, name.find('\''));
  if (const auto own = name.rfind(request); own != std::string_view::npos) {
    return std::string{name.substr(own + request.size())};
  }
  constexpr std::string_view package = "sglang.grpc.scheduler.";
  return std::string{name.starts_with(package) ? name.substr(package.size()) : name};
}

} // namespace rankwise::io::front
