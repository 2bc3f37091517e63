#pragma once

#include "app/bench/bench_figure.hpp"
#include "app/bench/bench_options.hpp"

#include <cstdint>
#include <vector>

/// The groups of figures of `rankwise bench node`. Each measures, prints its rounds as they come, and appends its
/// figures. Each throws std::runtime_error when a server does not come up or does not do its work.
namespace rankwise::app {

/// CPU per token, gaps and throughput at so many open streams, beside the servers that are compared.
void measure_streams(const bench_options& o, std::uint32_t streams, std::vector<figure>& figures);

/// The time from accepting a request until ZeroMQ has it, at 2,000 requests a second.
void measure_dispatch(const bench_options& o, std::vector<figure>& figures);

/// The CPU of a node that has nothing to do.
void measure_idle(const bench_options& o, std::vector<figure>& figures);

/// The node's actors beside the same adapters without actors, memory of requests in flight, cost of a placement.
void measure_actors(const bench_options& o, std::vector<figure>& figures);

} // namespace rankwise::app
