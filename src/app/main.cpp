#include "app/commands.hpp"

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app{"Rankwise: a control plane for the data-parallel ranks of LLM engines"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  int exit_code = 0;
  rankwise::app::add_all_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int bad_arguments = 2;
    return app.exit(error) == 0 ? 0 : bad_arguments; // 0: help
  }
  return exit_code;
}
