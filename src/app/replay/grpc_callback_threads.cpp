#include "app/replay/grpc_callback_threads.hpp"

#include "io/front/sglang_scheduler.grpc.pb.h"

#include <future>
#include <grpcpp/grpcpp.h>
#include <memory>

namespace rankwise::app {

void keep_grpc_callback_threads() {
  namespace pb = sglang::grpc::scheduler;
  struct kept {
    std::unique_ptr<pb::SglangScheduler::Stub> stub;
    grpc::ClientContext context;
    pb::HealthCheckRequest request;
    pb::HealthCheckResponse response;
  };
  static const kept* const forever = [] {
    auto* const k = new kept; // a channel takes part from its first such call on; nobody need answer
    k->stub = pb::SglangScheduler::NewStub(grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()));
    std::promise<void> done;
    k->stub->async()->HealthCheck(&k->context, &k->request, &k->response,
                                  [&](const grpc::Status&) { done.set_value(); });
    done.get_future().wait();
    return k;
  }();
  static_cast<void>(forever);
}

} // namespace rankwise::app
