// The gRPC front over an engine that echoes checkable tokens, as a program: the peer of the Python tests and of the
// benchmark. Prints "grpc=HOST:PORT" and "READY"; ends at SIGTERM, or when standard input is closed with --stdin.

#include "echo_engine.hpp"

#include "io/front/scheduler_front.hpp"

#include <CLI/CLI.hpp>

#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <iostream>

namespace {

class steady final : public rankwise::core::clock {
 public:
  [[nodiscard]] rankwise::core::timestamp now() const noexcept override { return std::chrono::steady_clock::now(); }
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

} // namespace

int main(int argc, char** argv) {
  rankwise::io::front::front_options front_options;
  rankwise::testing::echo_options echo;
  std::uint32_t step_us = 10'000;
  std::uint32_t drain_s = 5;
  CLI::App app{"gRPC front over an echoing engine"};
  app.add_option("--grpc", front_options.server.listen, "listen address, port 0 = any")->capture_default_str();
  app.add_option("--step-us", step_us, "time between two tokens of a stream, in microseconds")->capture_default_str();
  app.add_option("--batch", echo.streams_per_batch, "streams per engine batch")->capture_default_str();
  app.add_option("--dp-size", echo.dp_size, "ranks to tell of")->capture_default_str();
  app.add_option("--mode", echo.disaggregation_mode, "null, prefill or decode")->capture_default_str();
  app.add_option("--model", front_options.model.model_path, "model and tokenizer path to tell of");
  app.add_option("--tls-certificate", front_options.server.tls.certificate, "the server's chain, a PEM file");
  app.add_option("--tls-key", front_options.server.tls.key, "its key, a PEM file");
  app.add_option("--tls-client-ca", front_options.server.tls.client_ca,
                 "clients need a certificate of these, a PEM file");
  app.add_option("--message-bytes-max", front_options.server.message_bytes_max, "of one request")
      ->capture_default_str();
  auto& floods = front_options.server.floods;
  std::int64_t ping_interval_ms = floods.ping_interval_min.count();
  app.add_option("--ping-interval-ms", ping_interval_ms, "keepalive PINGs that come sooner are strikes")
      ->capture_default_str();
  app.add_option("--resets-burst", floods.resets.burst, "resets of one connection at once")->capture_default_str();
  app.add_option("--resets-per-s", floods.resets.per_s, "and each second")->capture_default_str();
  app.add_option("--drain", drain_s, "seconds that open calls get at the end")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  echo.step = std::chrono::microseconds{step_us};
  floods.ping_interval_min = std::chrono::milliseconds{ping_interval_ms};

  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::sigaddset(&ends, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  const steady clock;
  rankwise::testing::echo_engine engine{echo};
  rankwise::io::front::scheduler_front front{front_options, engine, clock};
  if (auto started = front.start(); !started) {
    std::cerr << started.error() << '\n';
    return 1;
  }
  engine.start(front);
  std::cout << "grpc=127.0.0.1:" << front.port() << "\nREADY" << std::endl;
  for (;;) {
    int got = 0;
    ::sigwait(&ends, &got);
    if (got != SIGUSR1) {
      break;
    }
    // One line of figures, for a client that takes differences.
    const auto c = front.counters();
    std::cout << "cpu_s=" << cpu_seconds() << " tokens=" << c.tokens << " chunks=" << c.chunks
              << " writes=" << c.server.writes << " wakes=" << c.server.wakes << " calls_now=" << c.server.calls_now
              << " cancels=" << engine.cancels() << " connections=" << c.server.connections_accepted
              << " connections_now=" << c.server.connections_now << " calls_started=" << c.server.calls_started
              << " calls_refused=" << c.server.calls_refused << " resets=" << c.server.resets_received
              << " tls_handshakes=" << c.server.tls_handshakes
              << " tls_handshakes_failed=" << c.server.tls_handshakes_failed;
    for (std::size_t kind = 0; kind < c.server.floods.size(); ++kind) {
      std::cout << ' ' << to_string(static_cast<rankwise::io::grpc::flood_kind>(kind)) << '=' << c.server.floods[kind];
    }
    std::cout << std::endl;
  }
  const bool clean = front.drain(std::chrono::seconds{drain_s});
  engine.stop();
  std::cout << "drained=" << (clean ? "clean" : "cut") << std::endl;
  return 0;
}
