#include "sim/built_in_workloads.hpp"

#include "sim/random.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>

namespace rankwise::sim {

namespace {

// -- the mix
// --------------------------------------------------------------------------------------------------------------

struct length_class {
  double share;
  double input_median;
  double input_sigma;
  double output_median;
  double output_sigma;
  bool may_share_prefix;
};

constexpr std::array mixed_classes{
    length_class{0.60, 500, 0.8, 200, 0.7, true}, length_class{0.20, 8000, 0.5, 150, 0.6, true},
    length_class{0.15, 50, 0.6, 20, 0.5, false}, length_class{0.05, 300, 0.6, 1200, 0.5, false}};
constexpr std::uint64_t mixed_shared_prompts = 8;

// Numbers of blocks: shared ones are below the first, each request or session has a range of its own from there on.
constexpr std::uint64_t own_blocks_from = 1U << 20;
constexpr unsigned own_blocks_bits = 16;

std::uint64_t own_block(std::size_t owner, std::size_t block) {
  return own_blocks_from + (std::uint64_t{owner} << own_blocks_bits) + block;
}

std::size_t blocks_of(std::uint32_t tokens, std::uint32_t block_tokens) {
  return (std::size_t{tokens} + block_tokens - 1) / block_tokens;
}

std::uint32_t draw_length(random_source& random, double median, double sigma, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::clamp(random.lognormal(median, sigma), 1.0, static_cast<double>(most)));
}

const length_class& draw_class(random_source& random) {
  double at = random.uniform();
  for (const length_class& c : mixed_classes) {
    if (at < c.share) {
      return c;
    }
    at -= c.share;
  }
  return mixed_classes.front();
}

workload_request draw_mixed(random_source& random, const mixed_workload_options& options, std::size_t number,
                            std::uint32_t block_tokens) {
  const length_class& c = draw_class(random);
  workload_request request;
  request.input_tokens = draw_length(random, c.input_median, c.input_sigma, options.input_tokens_max);
  request.output_tokens = draw_length(random, c.output_median, c.output_sigma, options.output_tokens_max);
  if (c.may_share_prefix && random.below(3) == 0) {
    const std::uint64_t prompt = random.below(mixed_shared_prompts);
    const std::size_t blocks = blocks_of(request.input_tokens, block_tokens);
    // The shared prompts are one to eight blocks long; what follows is the request's own.
    for (std::size_t block = 0; block < blocks; ++block) {
      request.prefix_blocks.push_back(block <= prompt ? prompt * 16 + block : own_block(number, block));
    }
  }
  return request;
}

// -- requests that follow others
// --------------------------------------------------------------------------------------------

/// A request of a client (or session) that has one at a time.
struct client_request {
  workload_request request;
  std::size_t client = 0;
};

/// The first `count` of them by arrival_s, each linked to the one of its client before. Those of one client are in
/// their order.
std::vector<workload_request> link_clients(std::vector<client_request> drawn, std::size_t clients, std::size_t count) {
  std::stable_sort(drawn.begin(), drawn.end(),
                   [](const auto& a, const auto& b) { return a.request.arrival_s < b.request.arrival_s; });
  drawn.resize(std::min(count, drawn.size()));
  std::vector<std::optional<std::uint32_t>> last(clients);
  std::vector<workload_request> result;
  result.reserve(drawn.size());
  for (auto& d : drawn) {
    d.request.after = last[d.client];
    last[d.client] = static_cast<std::uint32_t>(result.size());
    result.push_back(std::move(d.request));
  }
  return result;
}

} // namespace

workload mixed_workload(const mixed_workload_options& options) {
  random_source random(options.seed);
  workload result;
  result.name = "built-in mixed lengths";
  result.requests.reserve(options.requests);
  double at = 0;
  for (std::size_t i = 0; i < options.requests; ++i) {
    auto request = draw_mixed(random, options, i, result.block_tokens);
    request.arrival_s = at;
    result.requests.push_back(std::move(request));
    at += random.exponential(1 / options.requests_per_s);
  }
  return result;
}

workload giants_workload(const giants_workload_options& options) {
  auto result = mixed_workload(options.mix);
  result.name = "built-in, one giant per " + std::to_string(options.every);
  for (std::size_t i = options.every / 2; i < result.requests.size(); i += options.every) {
    result.requests[i].input_tokens = options.giant_tokens;
    result.requests[i].prefix_blocks.clear();
  }
  return result;
}

workload shared_prompts_workload(const shared_prompts_workload_options& options) {
  random_source random(options.seed);
  workload result;
  result.name = "built-in shared system prompts";
  result.requests.reserve(options.requests);
  std::vector<std::size_t> lengths; // of the system prompts, in blocks
  std::vector<double> frequencies;
  double all = 0;
  for (std::uint32_t i = 0; i < options.prompts; ++i) {
    lengths.push_back(1 + random.below(options.prompt_blocks_max));
    frequencies.push_back(all += 1.0 / (i + 1));
  }
  double at = 0;
  for (std::size_t i = 0; i < options.requests; ++i) {
    const std::size_t prompt = random.pick(frequencies);
    workload_request request;
    request.arrival_s = at;
    const auto shared = static_cast<std::uint32_t>(lengths[prompt]) * result.block_tokens;
    request.input_tokens = shared + draw_length(random, 300, 0.8, 8192);
    request.output_tokens = draw_length(random, 200, 0.7, 2048);
    for (std::size_t block = 0; block < blocks_of(request.input_tokens, result.block_tokens); ++block) {
      request.prefix_blocks.push_back(block < lengths[prompt] ? prompt * options.prompt_blocks_max + block
                                                              : own_block(i, block));
    }
    result.requests.push_back(std::move(request));
    at += random.exponential(1 / options.requests_per_s);
  }
  return result;
}

workload agents_workload(const agents_workload_options& options) {
  constexpr std::uint64_t system_prompts = 4;
  constexpr std::size_t system_blocks = 4;
  random_source random(options.seed);
  workload result;
  result.name = "built-in agents with growing context";
  std::vector<client_request> drawn;
  // Sessions begin until as many turns are due by then: the load does not fade towards the end.
  std::priority_queue<double, std::vector<double>, std::greater<>> due;
  std::size_t due_before = 0;
  std::size_t sessions = 0;
  for (double begin = 0;; ++sessions, begin += random.exponential(options.turns / options.requests_per_s)) {
    for (; !due.empty() && due.top() <= begin; due.pop()) {
      ++due_before;
    }
    if (due_before >= options.requests) {
      break;
    }
    const auto turns = 1 + random.below(2 * std::uint64_t{options.turns} - 1);
    const std::uint64_t system = random.below(system_prompts);
    workload_request request;
    request.arrival_s = begin;
    request.input_tokens = static_cast<std::uint32_t>(system_blocks) * result.block_tokens;
    request.input_tokens += draw_length(random, 1500, 0.6, 16'384);
    request.input_tokens = std::min(request.input_tokens, options.input_tokens_max); // a session has one turn at least
    for (std::uint64_t turn = 0; turn < turns && request.input_tokens <= options.input_tokens_max; ++turn) {
      request.output_tokens = draw_length(random, 150, 0.7, 2048);
      for (std::size_t b = request.prefix_blocks.size(); b < blocks_of(request.input_tokens, result.block_tokens);
           ++b) {
        request.prefix_blocks.push_back(b < system_blocks ? system * system_blocks + b : own_block(sessions, b));
      }
      drawn.push_back({request, sessions});
      due.push(request.arrival_s);
      request.think_s = random.exponential(options.think_s);
      request.arrival_s += request.think_s;
      request.input_tokens += request.output_tokens + draw_length(random, 800, 0.8, 8192);
    }
  }
  result.requests = link_clients(std::move(drawn), sessions, options.requests);
  return result;
}

workload closed_loop_workload(const closed_loop_workload_options& options) {
  random_source random(options.mix.seed);
  workload result;
  result.name = "built-in closed loop of " + std::to_string(options.clients) + " clients";
  std::vector<client_request> drawn;
  std::vector<double> next(options.clients); // by client
  for (auto& at : next) {
    at = random.uniform() * options.think_s; // not all at once
  }
  for (std::size_t i = 0; i < options.mix.requests; ++i) {
    const std::size_t client = i % options.clients;
    auto request = draw_mixed(random, options.mix, i, result.block_tokens);
    request.think_s = i < options.clients ? 0 : random.exponential(options.think_s);
    request.arrival_s = next[client] += request.think_s;
    drawn.push_back({std::move(request), client});
  }
  result.requests = link_clients(std::move(drawn), options.clients, options.mix.requests);
  // The first one comes when the run begins.
  const double first = result.requests.empty() ? 0 : result.requests.front().arrival_s;
  for (auto& request : result.requests) {
    request.arrival_s -= first;
  }
  return result;
}

std::optional<workload> built_in_workload(std::string_view name, const built_in_choice& choice) {
  mixed_workload_options mix;
  mix.requests = choice.requests;
  mix.requests_per_s = choice.requests_per_s;
  mix.seed = choice.seed;
  if (name == "mixed") {
    return mixed_workload(mix);
  }
  if (name == "giants") {
    return giants_workload({mix, choice.giant_every});
  }
  if (name == "shared-prompts") {
    return shared_prompts_workload({choice.requests, choice.requests_per_s, choice.seed});
  }
  if (name == "agents") {
    agents_workload_options agents;
    agents.requests = choice.requests;
    agents.requests_per_s = choice.requests_per_s;
    agents.seed = choice.seed;
    agents.think_s = choice.think_s.value_or(agents.think_s);
    return agents_workload(agents);
  }
  if (name == "closed-loop") {
    closed_loop_workload_options loop;
    loop.mix = mix;
    loop.clients = choice.clients;
    loop.think_s = choice.think_s.value_or(loop.think_s);
    return closed_loop_workload(loop);
  }
  return std::nullopt;
}

} // namespace rankwise::sim
