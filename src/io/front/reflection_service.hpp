#pragma once

#include "io/grpc/server.hpp"

#include <string>
#include <vector>

namespace rankwise::io::front {

/// Adds server reflection (v1 and v1alpha) for `services`, full names; before the server starts. Descriptors come from
/// protobuf's generated pool.
void install_reflection(grpc::server& server, std::vector<std::string> services);

} // namespace rankwise::io::front
