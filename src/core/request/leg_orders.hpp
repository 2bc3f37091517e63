#pragma once

#include "core/base/ids.hpp"
#include "core/placement/orders.hpp"
#include "core/request/request.hpp"

#include <algorithm>
#include <cstdint>

namespace rankwise::core {

/// Tokens that one sample of the request may take at the most: its prompt and all that it may generate.
[[nodiscard]] inline std::uint64_t limit_tokens_of(const generate_request& request) noexcept {
  return request.input_ids.size() + static_cast<std::uint64_t>(std::max(request.sampling.max_new_tokens, 0));
}

/// What a pool's controller has to know of a request to give one of its legs a rank; without block hashes.
[[nodiscard]] inline place_order order_of(const generate_request& request, leg_id leg, std::uint32_t sample = 0) {
  place_order order;
  order.handle = leg.handle;
  order.attempt = leg.attempt;
  order.sample = sample;
  order.rid = request.rid;
  order.prompt_tokens = request.input_ids.size();
  order.max_new_tokens = limit_tokens_of(request) - order.prompt_tokens;
  order.priority = request.priority;
  order.deadline = request.deadline;
  order.first_token_by = request.first_token_by;
  order.data_parallel_rank = request.data_parallel_rank;
  order.bootstrap = request.bootstrap;
  order.received_at = request.received_at;
  return order;
}

} // namespace rankwise::core
