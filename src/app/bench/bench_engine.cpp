#include "app/bench/bench_engine.hpp"

#include <fmt/format.h>

namespace rankwise::app {

std::vector<std::string> bench_engine_arguments(const std::string& handshake, int ranks, double step_ms) {
  return {"engine",
          "--handshake",
          handshake,
          "--ranks",
          std::to_string(ranks),
          "--step-base-ms",
          fmt::format("{}", step_ms),
          "--step-per-request-ms",
          "0",
          "--step-per-kv-token-us",
          "0",
          "--step-jitter",
          "0",
          "--prefill-tokens-per-s",
          "1e12",
          "--block-tokens",
          "0",
          "--chunk",
          "1000000",
          "--max-running",
          "8192",
          "--max-model-len",
          "10000000",
          "--kv-tokens",
          "10000000000",
          "--quiet",
          "--die-with-parent"};
}

} // namespace rankwise::app
