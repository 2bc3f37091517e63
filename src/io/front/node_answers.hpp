#pragma once

#include "core/request/request_intake.hpp"
#include "io/front/front_options.hpp"
#include "io/grpc/status.hpp"

#include <tl/expected.hpp>

#include <chrono>

namespace sglang::grpc::scheduler {
class GetLoadsRequest;
class GetLoadsResponse;
class GetModelInfoResponse;
class GetServerInfoResponse;
} // namespace sglang::grpc::scheduler

/// The answers of the unary calls that tell about the node. Pure functions of what the node says of itself.
namespace rankwise::io::front {

/// A figure that the node does not know is left 0, as proto3 has no other "unknown". Error: INVALID_ARGUMENT for a
/// section that is none of core, memory, spec, lora, disagg, queues, all (SGLang's list), or a negative dp_rank.
[[nodiscard]] tl::expected<void, grpc::status> fill_loads(const ::sglang::grpc::scheduler::GetLoadsRequest& request,
                                                          const core::node_info& node,
                                                          const std::vector<core::rank_load>& ranks, std::uint16_t pool,
                                                          std::chrono::system_clock::time_point now,
                                                          ::sglang::grpc::scheduler::GetLoadsResponse& out);

void fill_model_info(const model_facts& model, const core::node_info& node,
                     ::sglang::grpc::scheduler::GetModelInfoResponse& out);

struct server_times {
  std::chrono::system_clock::time_point started;
  double uptime_s = 0;
  std::chrono::system_clock::time_point last_request; ///< The epoch = none yet.
};

void fill_server_info(const front_options& options, const core::node_info& node, const server_times& times,
                      ::sglang::grpc::scheduler::GetServerInfoResponse& out);

} // namespace rankwise::io::front
