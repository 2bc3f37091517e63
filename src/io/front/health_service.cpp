#include "io/front/health_service.hpp"

#include "io/front/grpc_health.pb.h"

#include <algorithm>

namespace rankwise::io::front {

namespace {

namespace pb = ::grpc::health::v1;

constexpr std::chrono::milliseconds watch_interval{500};

} // namespace

/// One Watch: the status now, and again whenever it changes.
class health_service::watch_call final : public grpc::call_handler {
 public:
  watch_call(health_service& owner, grpc::call& call, bool known) : owner_(owner), call_(call), known_(known) {
    owner_.watchers_.push_back(this);
    refresh();
  }
  ~watch_call() override { std::erase(owner_.watchers_, this); }

  void refresh() {
    current_ = !known_             ? pb::HealthCheckResponse::SERVICE_UNKNOWN
               : owner_.serving_() ? pb::HealthCheckResponse::SERVING
                                   : pb::HealthCheckResponse::NOT_SERVING;
    if (current_ != sent_) {
      call_.resume();
    }
  }

  grpc::pull_result pull(std::string& out, grpc::status&) override {
    if (current_ == sent_) {
      return grpc::pull_result::nothing_now;
    }
    sent_ = current_;
    pb::HealthCheckResponse answer;
    answer.set_status(current_);
    answer.AppendToString(&out);
    return grpc::pull_result::message;
  }

 private:
  health_service& owner_;
  grpc::call& call_;
  const bool known_;
  pb::HealthCheckResponse::ServingStatus current_ = pb::HealthCheckResponse::UNKNOWN;
  pb::HealthCheckResponse::ServingStatus sent_ = pb::HealthCheckResponse::UNKNOWN;
};

health_service::health_service(grpc::server& server, std::function<bool()> serving)
    : server_(server), serving_(std::move(serving)) {}

bool health_service::known(std::string_view service) const {
  return service.empty() || std::find(services_.begin(), services_.end(), service) != services_.end();
}

void health_service::install(std::vector<std::string> services) {
  services_ = std::move(services);
  const auto parse = [](std::string_view bytes) -> tl::expected<std::string, grpc::status> {
    pb::HealthCheckRequest request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return tl::unexpected(grpc::status{grpc::status_code::invalid_argument, "HealthCheckRequest: cannot be decoded"});
    }
    return request.service();
  };
  server_.add_unary("/grpc.health.v1.Health/Check",
                    [this, parse](grpc::call&, std::string_view bytes) -> tl::expected<std::string, grpc::status> {
                      const auto service = parse(bytes);
                      if (!service) {
                        return tl::unexpected(service.error());
                      }
                      if (!known(*service)) {
                        return tl::unexpected(
                            grpc::status{grpc::status_code::not_found, "service: " + *service + " is not known here"});
                      }
                      pb::HealthCheckResponse answer;
                      answer.set_status(serving_() ? pb::HealthCheckResponse::SERVING
                                                   : pb::HealthCheckResponse::NOT_SERVING);
                      return answer.SerializeAsString();
                    });
  server_.add_streaming("/grpc.health.v1.Health/Watch",
                        [this, parse](grpc::call& call, std::string_view bytes)
                            -> tl::expected<std::unique_ptr<grpc::call_handler>, grpc::status> {
                          const auto service = parse(bytes);
                          if (!service) {
                            return tl::unexpected(service.error());
                          }
                          auto watch = std::make_unique<watch_call>(*this, call, known(*service));
                          arm();
                          return watch;
                        });
}

void health_service::refresh() {
  for (auto* watch : watchers_) {
    watch->refresh();
  }
}

void health_service::arm() {
  if (armed_ || watchers_.empty()) {
    return;
  }
  armed_ = true;
  server_.after(watch_interval, [this] {
    armed_ = false;
    refresh();
    arm();
  });
}

} // namespace rankwise::io::front
