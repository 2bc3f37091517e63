#include "io/zmq/rank_restore.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace rankwise::io {

namespace {

/// The endpoint as the record tells of it, not yet bound. It counts as lost until the rank reconnects.
rank_endpoint_ptr endpoint_of(const rank_record& record, core::rank_id rank, send_queue_limits limits) {
  auto endpoint = std::make_shared<rank_endpoint>(rank, record.registration.epoch, record.identity, limits);
  endpoint->input_address = record.input_address;
  endpoint->output_address = record.output_address;
  endpoint->registered = true;
  endpoint->lost = true;
  endpoint->registration = record.registration;
  endpoint->registration.kind = link_event_kind::restored;
  endpoint->registration.rank = rank;
  endpoint->registration.cause = "known from the state file";
  return endpoint;
}

} // namespace

std::vector<std::string> rank_restore::take_in(const std::vector<rank_record>& records) {
  std::vector<std::string> failures;
  for (const auto& record : records)
    if (const auto why = take_in(record); !why.empty())
      failures.push_back(record.pool + "/" + std::to_string(record.registration.rank.rank) + ": " + why);
  return failures;
}

/// Why the rank cannot be restored; empty when it was.
std::string rank_restore::take_in(const rank_record& record) {
  const auto& pools = context_.options.pools;
  const auto number = record.registration.rank.rank;
  const auto pool =
      std::find_if(pools.begin(), pools.end(), [&](const hub_pool_options& p) { return p.name == record.pool; });
  if (pool == pools.end())
    return "there is no such pool any more";
  if (number >= pool->ranks_max)
    return "ranks_max is smaller now";
  const core::rank_id rank{static_cast<std::uint16_t>(pool - pools.begin()), number};
  auto endpoint = endpoint_of(record, rank, context_.queue_limits());
  try {
    sockets_.open(*endpoint, handshakes_.address(rank.pool));
  } catch (const zmq::error_t& e) {
    return "cannot bind " + record.input_address + " and " + record.output_address + ": " + e.what();
  }
  links_.continue_after(rank, record.registration.epoch);
  if (endpoint->registration.data_parallel_size > 1 || rank.rank > 0)
    directory_.note_several_ranks(rank.pool);
  context_.callbacks.on_link_event(endpoint->registration);
  links_.take_in(std::move(endpoint));
  return {};
}

} // namespace rankwise::io
