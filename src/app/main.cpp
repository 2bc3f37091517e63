#include "app/bench/bench_command.hpp"
#include "app/cli/view_commands.hpp"
#include "app/demo/demo_command.hpp"
#include "app/engine/engine_command.hpp"
#include "app/node/node_command.hpp"
#include "app/replay/replay_command.hpp"
#include "app/sim/sim_command.hpp"

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app{"Rankwise: a control plane for the data-parallel ranks of LLM engines"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  int exit_code = 0;
  rankwise::app::add_demo_command(app, exit_code);
  rankwise::app::add_node_command(app, exit_code);
  rankwise::app::add_replay_command(app, exit_code);
  rankwise::app::add_bench_command(app, exit_code);
  rankwise::app::add_engine_command(app, exit_code);
  rankwise::app::add_sim_command(app, exit_code);
  rankwise::app::add_view_commands(app, exit_code);
  rankwise::app::add_top_command(app, exit_code);
  rankwise::app::add_operator_commands(app, exit_code);
  rankwise::app::add_config_command(app, exit_code);
  rankwise::app::add_history_command(app, exit_code);
  rankwise::app::add_record_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int bad_arguments = 2;
    return app.exit(error) == 0 ? 0 : bad_arguments; // 0: help
  }
  return exit_code;
}
