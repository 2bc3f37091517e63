#include "app/commands.hpp"

#include "app/bench/bench_command.hpp"
#include "app/cli/view_commands.hpp"
#include "app/demo/demo_command.hpp"
#include "app/engine/engine_command.hpp"
#include "app/node/node_command.hpp"
#include "app/replay/replay_command.hpp"
#include "app/sim/sim_command.hpp"

#include <CLI/CLI.hpp>

namespace rankwise::app {

void add_all_commands(CLI::App& app, int& exit_code) {
  add_demo_command(app, exit_code);
  add_node_command(app, exit_code);
  add_replay_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_engine_command(app, exit_code);
  add_sim_command(app, exit_code);
  add_view_commands(app, exit_code);
  add_top_command(app, exit_code);
  add_operator_commands(app, exit_code);
  add_config_command(app, exit_code);
  add_history_command(app, exit_code);
  add_record_commands(app, exit_code);
}

} // namespace rankwise::app
