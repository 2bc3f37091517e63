#include "io/front/reflection_service.hpp"

#include "io/front/grpc_reflection_v1.pb.h"
#include "io/front/grpc_reflection_v1alpha.pb.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <deque>
#include <set>

namespace rankwise::io::front {

namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

// A client that asks without reading the answers is cut off here.
constexpr std::size_t answers_queued_max = 64;

/// A file and all it imports, each once.
void collect(const FileDescriptor* file, std::set<const FileDescriptor*>& seen, std::vector<std::string>& out) {
  if (!seen.insert(file).second) {
    return;
  }
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  out.push_back(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) {
    collect(file->dependency(i), seen, out);
  }
}

// The two versions are the same messages under two package names.
template <class Request, class Response>
std::string answer(const Request& request, const std::vector<std::string>& services) {
  Response out;
  out.set_valid_host(request.host());
  *out.mutable_original_request() = request;
  const auto* pool = DescriptorPool::generated_pool();
  const auto fail = [&](grpc::status_code code, const std::string& text) {
    out.mutable_error_response()->set_error_code(static_cast<std::int32_t>(code));
    out.mutable_error_response()->set_error_message(text);
  };
  const auto give = [&](const FileDescriptor* file, const std::string& asked) {
    if (file == nullptr) {
      fail(grpc::status_code::not_found, asked + " is not known here");
      return;
    }
    std::set<const FileDescriptor*> seen;
    std::vector<std::string> files;
    collect(file, seen, files);
    for (auto& bytes : files) {
      out.mutable_file_descriptor_response()->add_file_descriptor_proto(std::move(bytes));
    }
  };
  switch (request.message_request_case()) {
  case Request::kListServices:
    for (const auto& name : services) {
      out.mutable_list_services_response()->add_service()->set_name(name);
    }
    break;
  case Request::kFileByFilename:
    give(pool->FindFileByName(request.file_by_filename()), request.file_by_filename());
    break;
  case Request::kFileContainingSymbol:
    give(pool->FindFileContainingSymbol(request.file_containing_symbol()), request.file_containing_symbol());
    break;
  case Request::kFileContainingExtension:
  case Request::kAllExtensionNumbersOfType:
    fail(grpc::status_code::not_found, "there are no extensions in proto3");
    break;
  case Request::MESSAGE_REQUEST_NOT_SET:
    fail(grpc::status_code::invalid_argument, "message_request: is required");
    break;
  }
  return out.SerializeAsString();
}

template <class Request, class Response>
class reflection_call final : public grpc::call_handler {
 public:
  reflection_call(grpc::call& call, const std::vector<std::string>& services) : call_(call), services_(services) {}

  void on_message(std::string_view bytes) override {
    Request request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      call_.end_now({grpc::status_code::invalid_argument, "ServerReflectionRequest: cannot be decoded"});
      return;
    }
    if (answers_.size() >= answers_queued_max) {
      call_.end_now({grpc::status_code::resource_exhausted, "too many answers wait for the client"});
      return;
    }
    answers_.push_back(answer<Request, Response>(request, services_));
    call_.resume();
  }

  void on_half_close() override {
    half_closed_ = true;
    call_.resume();
  }

  grpc::pull_result pull(std::string& out, grpc::status&) override {
    if (answers_.empty()) {
      return half_closed_ ? grpc::pull_result::finished : grpc::pull_result::nothing_now;
    }
    out += answers_.front();
    answers_.pop_front();
    return grpc::pull_result::message;
  }

 private:
  grpc::call& call_;
  const std::vector<std::string>& services_;
  std::deque<std::string> answers_;
  bool half_closed_ = false;
};

template <class Request, class Response>
void install(grpc::server& server, const std::string& path, std::shared_ptr<const std::vector<std::string>> services) {
  server.add_bidirectional(
      path, [services](grpc::call& call) -> tl::expected<std::unique_ptr<grpc::call_handler>, grpc::status> {
        return std::make_unique<reflection_call<Request, Response>>(call, *services);
      });
}

} // namespace

void install_reflection(grpc::server& server, std::vector<std::string> services) {
  services.emplace_back("grpc.reflection.v1.ServerReflection");
  services.emplace_back("grpc.reflection.v1alpha.ServerReflection");
  const auto shared = std::make_shared<const std::vector<std::string>>(std::move(services));
  install<::grpc::reflection::v1::ServerReflectionRequest, ::grpc::reflection::v1::ServerReflectionResponse>(
      server, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", shared);
  install<::grpc::reflection::v1alpha::ServerReflectionRequest, ::grpc::reflection::v1alpha::ServerReflectionResponse>(
      server, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", shared);
}

} // namespace rankwise::io::front
