#include "core/placement/policies/headroom.hpp"
#include "core/placement/policies/peers.hpp"
#include "core/placement/policies/power_of_two.hpp"
#include "core/placement/policies/upstream.hpp"

#include <array>

namespace rankwise::core {

namespace {

constexpr std::array<std::string_view, 17> names{"headroom",
                                                 "least_kv",
                                                 "round_robin",
                                                 "total_requests",
                                                 "total_tokens",
                                                 "total_tokens_uncharged",
                                                 "follow_bootstrap_room",
                                                 "power_of_two",
                                                 "vllm_counts",
                                                 "vllm",
                                                 "dynamo",
                                                 "smg_least_load",
                                                 "smg_power_of_two",
                                                 "smg_servicer",
                                                 "llm_d",
                                                 "prefix_hash",
                                                 "random"};

} // namespace

std::span<const std::string_view> policy_names() noexcept {
  return names;
}

std::unique_ptr<policy> make_policy(std::string_view name, const policy_options& options) {
  using rule = upstream_budget::rule;
  if (name == "headroom")
    return std::make_unique<headroom>(options);
  if (name == "round_robin")
    return std::make_unique<round_robin>();
  if (name == "total_requests")
    return std::make_unique<upstream_budget>(rule::total_requests);
  if (name == "total_tokens")
    return std::make_unique<upstream_budget>(rule::total_tokens);
  if (name == "total_tokens_uncharged")
    return std::make_unique<upstream_budget>(rule::total_tokens_uncharged);
  if (name == "follow_bootstrap_room")
    return std::make_unique<follow_bootstrap_room>();
  if (name == "power_of_two")
    return std::make_unique<power_of_two>(options);
  if (name == "least_kv")
    return std::make_unique<least_kv>();
  if (name == "vllm_counts")
    return std::make_unique<vllm>(vllm::rule::counts);
  if (name == "vllm")
    return std::make_unique<vllm>(vllm::rule::in_flight);
  if (name == "dynamo")
    return std::make_unique<dynamo>(options);
  if (name == "smg_least_load" || name == "smg_power_of_two")
    return std::make_unique<smg_load>(options, name == "smg_power_of_two");
  if (name == "smg_servicer")
    return std::make_unique<fewest_in_flight>();
  if (name == "llm_d")
    return std::make_unique<llm_d>(options);
  if (name == "prefix_hash")
    return std::make_unique<prefix_hash>();
  if (name == "random")
    return std::make_unique<random_rank>(options);
  return nullptr;
}

} // namespace rankwise::core
