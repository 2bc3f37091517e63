#include "app/node/history_file.hpp"

#include <cinttypes>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace rankwise::app {

history_file::history_file(const std::string& path) : file_(std::fopen(path.c_str(), "w"), &std::fclose) {
  if (!file_)
    throw std::runtime_error("history_file: cannot write " + path);
  std::fputs("# at_ns kind stream sample handle attempt pool rank epoch first_index count ended_as reason\n",
             file_.get());
}

void history_file::record(const core::history_event& e) noexcept {
  std::fprintf(file_.get(), "%" PRId64 " %u %" PRIu64 " %u %" PRIu64 " %u %u %u %u %u %u %u %u\n",
               static_cast<std::int64_t>(e.at.time_since_epoch().count()), static_cast<unsigned>(e.kind), e.stream,
               e.sample, e.handle, e.attempt, e.rank.pool, e.rank.rank, e.epoch, e.first_index, e.count,
               static_cast<unsigned>(e.ended_as), static_cast<unsigned>(e.reason));
}

history_verdict check_history(const std::string& path) {
  std::ifstream in{path};
  if (!in)
    throw std::runtime_error(path + ": cannot be read");
  core::history_checker checker;
  history_verdict verdict;
  std::string line;
  std::size_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (line.empty() || line[0] == '#')
      continue;
    std::istringstream fields{line};
    core::history_event e;
    std::int64_t at = 0;
    unsigned kind = 0;
    unsigned ended_as = 0;
    unsigned reason = 0;
    if (!(fields >> at >> kind >> e.stream >> e.sample >> e.handle >> e.attempt >> e.rank.pool >> e.rank.rank >>
          e.epoch >> e.first_index >> e.count >> ended_as >> reason))
      throw std::runtime_error(path + ":" + std::to_string(number) + ": 13 numbers expected");
    e.kind = static_cast<core::history_kind>(kind);
    e.ended_as = static_cast<core::outcome_kind>(ended_as);
    e.reason = static_cast<core::failure>(reason);
    checker.record(e);
    ++verdict.events;
  }
  checker.finish();
  verdict.accepted = checker.accepted();
  verdict.ended = checker.ended();
  verdict.violations = checker.violations();
  return verdict;
}

} // namespace rankwise::app
