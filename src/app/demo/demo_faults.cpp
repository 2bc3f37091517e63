#include "app/demo/demo_faults.hpp"
#include "app/options/duration.hpp"

#include <algorithm>
#include <charconv>

namespace rankwise::app {

namespace {

std::pair<std::string_view, std::string_view> cut(std::string_view text, char at) {
  const auto place = text.find(at);
  if (place == std::string_view::npos)
    return {text, {}};
  return {text.substr(0, place), text.substr(place + 1)};
}

} // namespace

tl::expected<demo_fault, std::string> parse_fault(std::string_view text) {
  const auto wrong = [&](const std::string& what) {
    return tl::unexpected{"--fault \"" + std::string{text} + "\": " + what};
  };
  demo_fault fault;
  fault.text = std::string{text};
  const auto [kind, rest] = cut(text, ':');
  if (kind == "crash")
    fault.kind = fault_kind::crash;
  else if (kind == "kill")
    fault.kind = fault_kind::kill;
  else if (kind == "freeze")
    fault.kind = fault_kind::freeze;
  else
    return wrong("begins with neither crash:, kill: nor freeze:");
  const auto [target, when] = cut(rest, '@');
  if (when.empty())
    return wrong("@TIME is missing, e.g. @2s");
  auto place = target;
  if (fault.kind == fault_kind::crash) {
    const auto [role, where] = cut(target, '/');
    fault.role = std::string{role};
    place = where;
    static constexpr std::string_view roles[] = {"load_forwarder", "dp_controller", "dp_rank", "request_manager",
                                                 "introspector"};
    if (std::find(std::begin(roles), std::end(roles), role) == std::end(roles))
      return wrong("there is no actor \"" + fault.role + "\"");
  }
  const auto [pool, rank] = cut(place, '/');
  fault.pool = std::string{pool};
  if (!rank.empty()) {
    const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), fault.rank);
    if (error != std::errc{} || end != rank.data() + rank.size())
      return wrong("\"" + std::string{rank} + "\" is not a rank from 0 to 65535");
  } else if (fault.kind != fault_kind::crash || fault.role == "dp_rank") {
    return wrong("POOL/RANK is missing, e.g. decode/3");
  }
  const auto [at, length] = cut(when, '+');
  const auto at_s = parse_duration(at);
  if (!at_s)
    return wrong("\"" + std::string{at} + "\" is not a time: " + duration_notation());
  fault.at_s = *at_s;
  if (!length.empty()) {
    const auto [span, rate] = cut(length, '*');
    const auto for_s = parse_duration(span);
    if (!for_s)
      return wrong("\"" + std::string{span} + "\" is not a time: " + duration_notation());
    fault.for_s = *for_s;
    if (!rate.empty()) {
      const auto per_s = parse_number(rate);
      if (!per_s || *per_s <= 0 || *per_s > 1000 || fault.kind != fault_kind::crash)
        return wrong("\"" + std::string{rate} + "\" is not a rate of crashes per second above 0 and up to 1000");
      fault.per_s = *per_s;
    }
  }
  if (fault.kind == fault_kind::freeze && fault.for_s <= 0)
    return wrong("+TIME is missing, e.g. +2s");
  return fault;
}

std::vector<fault_action> schedule(const std::vector<demo_fault>& faults) {
  std::vector<fault_action> actions;
  for (const auto& fault : faults) {
    switch (fault.kind) {
    case fault_kind::kill:
      actions.push_back({fault.at_s, fault_action::what::kill, &fault});
      break;
    case fault_kind::freeze:
      actions.push_back({fault.at_s, fault_action::what::stop, &fault});
      actions.push_back({fault.at_s + fault.for_s, fault_action::what::resume, &fault});
      break;
    case fault_kind::crash: {
      const auto count = fault.per_s > 0 ? std::max(1, static_cast<int>(fault.for_s * fault.per_s)) : 1;
      for (int i = 0; i < count; ++i)
        actions.push_back({fault.at_s + (fault.per_s > 0 ? i / fault.per_s : 0), fault_action::what::crash, &fault});
      break;
    }
    }
  }
  std::stable_sort(actions.begin(), actions.end(),
                   [](const fault_action& a, const fault_action& b) { return a.at_s < b.at_s; });
  return actions;
}

} // namespace rankwise::app
