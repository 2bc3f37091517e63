#include "app/bench/bench_installation.hpp"

#include "app/bench/bench_engine.hpp"
#include "app/bench/bench_measure.hpp"

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace rankwise::app {

namespace {

std::vector<std::string> arguments_of(server_kind kind, const std::string& folder) {
  const auto ranks = std::to_string(bench_rank_count);
  if (kind == server_kind::node)
    return {"node",    "--grpc", "127.0.0.1:0", "--admin",    "127.0.0.1:0", "--handshake", "tcp://127.0.0.1:0",
            "--ranks", ranks,    "--state",     folder + "/s"};
  return {"bench-server", "--kind", std::string{to_string(kind)}, "--ranks", ranks, "--folder", folder};
}

} // namespace

std::string_view to_string(server_kind kind) {
  return kind == server_kind::node ? "node" : kind == server_kind::grpcpp ? "grpcpp" : "bare";
}

installation::installation(server_kind kind) {
  const auto log = folder_.path() + "/server.log";
  server_ = std::make_unique<child_process>(own_program(), arguments_of(kind, folder_.path()), log);
  grpc_ = wait_for("grpc=", log);
  if (kind == server_kind::node)
    admin_ = wait_for("admin=", log);
  const auto handshake = wait_for("handshake=", log);
  engine_ = std::make_unique<child_process>(
      own_program(),
      bench_engine_arguments(handshake.substr(handshake.find(':') + 1), bench_rank_count, bench_engine_step_ms),
      folder_.path() + "/engine.log");
  wait_for("READY", log);
}

double installation::cpu() const {
  return cpu_seconds(server_->pid());
}

std::optional<std::pair<double, double>> installation::end() {
  server_->signal(SIGTERM);
  std::optional<std::pair<double, double>> result;
  if (admin_.empty())
    if (const auto line = server_->wait_line("dispatch_us=", std::chrono::seconds{5})) {
      std::pair<double, double> times;
      std::istringstream{*line} >> times.first >> times.second;
      result = times;
    }
  engine_->end(std::chrono::seconds{1});
  server_->end(std::chrono::seconds{1});
  return result;
}

std::string installation::wait_for(const std::string& prefix, const std::string& log) {
  auto rest = server_->wait_line(prefix, std::chrono::seconds{20});
  if (!rest) {
    std::ostringstream text;
    text << std::ifstream{log}.rdbuf();
    throw std::runtime_error("a server did not say \"" + prefix + "\":\n" + text.str());
  }
  return *rest;
}

} // namespace rankwise::app
