#pragma once

#include "sim/simulation_options.hpp"

#include <string>

namespace rankwise::app {

/// Reads an --event of `rankwise sim`: "dies:3@120", "slows:3@60:2", "joins:3@200", "drains:3@50", in a pd pool also
/// "freezes:decode:3@70". `pool` says which ranks there are. Throws std::runtime_error that says what is wrong with it.
[[nodiscard]] sim::rank_happening parse_happening(const std::string& text, const sim::simulation_options& pool);

} // namespace rankwise::app
