#include "core/policies/headroom.hpp"
#include "core/policies/power_of_two.hpp"
#include "core/policies/upstream.hpp"

#include <array>

namespace rankwise::core {

namespace {

constexpr std::array<std::string_view, 7> names{
    "headroom",    "round_robin", "total_requests", "total_tokens", "total_tokens_uncharged", "follow_bootstrap_room",
    "power_of_two"};

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
  return nullptr;
}

} // namespace rankwise::core
