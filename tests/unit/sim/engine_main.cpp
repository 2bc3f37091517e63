#include "app/engine/engine_command.hpp"
#include "app/replay/replay_command.hpp"

#include <CLI/CLI.hpp>

/// The subcommands of this folder alone, so that their tests need nothing else of the program.
int main(int argc, char** argv) {
  CLI::App app("engine ranks for tests");
  int exit_code = 0;
  rankwise::app::add_engine_command(app, exit_code);
  rankwise::app::add_replay_command(app, exit_code);
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
