#include "app/sim/sim_event.hpp"

#include "app/options/option_checks.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <stdexcept>

namespace rankwise::app {

namespace {

using kind = sim::rank_happening::kind;

std::optional<kind> kind_of(const std::string& word) {
  const std::map<std::string, kind> kinds{{"dies", kind::dies},
                                          {"slows", kind::slows},
                                          {"joins", kind::joins},
                                          {"drains", kind::drains},
                                          {"freezes", kind::freezes}};
  const auto found = kinds.find(word);
  return found == kinds.end() ? std::nullopt : std::optional{found->second};
}

/// Takes "prefill:" or "decode:" off the beginning of `rest`.
std::optional<core::pool_role> take_role(std::string& rest) {
  std::optional<core::pool_role> taken;
  for (const auto role : {core::pool_role::prefill, core::pool_role::decode}) {
    const auto name = std::string{core::to_string(role)} + ":";
    if (!rest.starts_with(name))
      continue;
    taken = role;
    rest = rest.substr(name.size());
  }
  return taken;
}

} // namespace

sim::rank_happening parse_happening(const std::string& text, const sim::simulation_options& pool) {
  const auto fail = [&](const std::string& why) { throw std::runtime_error("--event: \"" + text + "\"" + why); };
  sim::rank_happening h;
  const auto colon = text.find(':');
  const auto what = kind_of(text.substr(0, colon));
  auto where = colon == std::string::npos ? std::string{} : text.substr(colon + 1);
  const bool pair = pool.shape == sim::pool_shape::pair;
  if (const auto role = take_role(where)) {
    if (!pair)
      fail(": only a pd pool (--pool pd) has a prefill and a decode pool");
    h.pool = *role;
  }
  const auto at = where.find('@');
  const auto more = where.find(':');
  const auto time = parse_duration(at == std::string::npos ? "" : where.substr(at + 1, more - at - 1)).value_or(-1);
  unsigned rank = 0;
  const auto* const rank_end = where.data() + std::min(at, where.size());
  const auto read = std::from_chars(where.data(), rank_end, rank);
  if (!what || read.ec != std::errc{} || read.ptr != rank_end || time < 0 || time > duration_max_s)
    fail(fmt::format(" is not dies|slows|joins|drains|freezes:[prefill:|decode:]RANK@TIME[:FACTOR]; TIME is {}, up to "
                     "{}",
                     duration_notation(), duration_text(duration_max_s)));
  const bool prefills = pair && h.pool == core::pool_role::prefill && pool.prefill_ranks > 0;
  const unsigned ranks = prefills ? pool.prefill_ranks : pool.ranks;
  if (rank >= ranks)
    fail(fmt::format(": rank {} is not one of 0 to {}", rank, ranks - 1));
  h.what = *what;
  h.at_s = time;
  h.rank = static_cast<std::uint16_t>(rank);
  h.factor = 2;
  if (more != std::string::npos) {
    const auto factor = parse_number(where.substr(more + 1));
    if (!factor || *factor <= 0)
      fail(": the factor is not a number above 0");
    h.factor = *factor;
  }
  return h;
}

} // namespace rankwise::app
