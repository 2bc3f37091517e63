#include "app/sim/decision_log_file.hpp"

#include "app/sim/sim_files.hpp"

#include <stdexcept>

namespace rankwise::app {

void plain_lines::close() {
  if (!file_.flush())
    throw std::runtime_error("cannot write " + path_.string());
}

decision_log_file::decision_log_file(const std::string& file, const std::string& policy, bool several,
                                     sim::simulation_options& options) {
  if (file.empty())
    return;
  if (options.oracle)
    throw std::runtime_error("--decision-log: " + policy + " decides by what no controller is told");
  sink_ = std::make_unique<plain_lines>(file_of(file, policy, several));
  options.recorder = [this](std::uint32_t front_end, std::uint32_t pool) {
    return writers_.emplace_back(std::make_unique<record::decision_writer>(*sink_, 2 * front_end + pool)).get();
  };
}

void decision_log_file::close() {
  if (sink_)
    sink_->close();
}

} // namespace rankwise::app
