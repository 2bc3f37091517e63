#pragma once

#include <string>
#include <vector>

namespace rankwise::app {

/// Arguments of a `rankwise engine` with `ranks` ranks that does one step every `step_ms`, whatever its batch and
/// prompts are, and has room for everything.
[[nodiscard]] std::vector<std::string> bench_engine_arguments(const std::string& handshake, int ranks, double step_ms);

} // namespace rankwise::app
