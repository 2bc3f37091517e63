#pragma once

#include <string>

namespace rankwise::app {

/// What the command line of `rankwise bench node` says.
struct bench_options {
  std::string json_file; ///< Where the figures go as JSON; empty = nowhere.
  std::string only;      ///< One group of figures: idle, actors, dispatch or streams; empty = all.
  bool no_fail = false;  ///< Exit with 0 also when a target is missed.
  bool quick = false;    ///< Short windows, which show that it works; their figures mean little.
  double seconds = 4;    ///< The length of each measuring window.
  int rounds = 3;        ///< How often each server is measured, in turn; the medians count.

  /// How long an idle node is watched, in seconds.
  [[nodiscard]] double idle_s() const { return quick ? 2 : 10; }
};

} // namespace rankwise::app
