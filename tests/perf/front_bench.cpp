// CPU of the gRPC front per token: starts front_server, opens streams over a few grpc++ channels and reads them for a
// while. Prints one JSON object: CPU microseconds of the server process per token, tokens per second, tokens per chunk,
// and the gaps between the chunks of a stream as this client sees them.

#include "io/front/sglang_scheduler.pb.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace pb = sglang::grpc::scheduler;
using clock_type = std::chrono::steady_clock;

struct settings {
  std::string server;
  std::uint32_t streams = 512;
  std::uint32_t channels = 4;
  std::uint32_t step_us = 10'000;
  std::uint32_t batch = 64;
  double warm_up_s = 1;
  double seconds = 5;
};

struct child {
  pid_t pid = -1;
  std::string address;
};

child launch(const settings& s) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) {
    return {};
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    const auto step = std::to_string(s.step_us);
    const auto batch = std::to_string(s.batch);
    ::execl(s.server.c_str(), s.server.c_str(), "--step-us", step.c_str(), "--batch", batch.c_str(), "--drain", "0",
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  FILE* out = ::fdopen(ends[0], "r");
  char line[256];
  child c{pid, {}};
  while (std::fgets(line, sizeof(line), out) != nullptr) {
    std::string text{line};
    text.erase(text.find_last_not_of('\n') + 1);
    if (text.starts_with("grpc=")) {
      c.address = text.substr(5);
    } else if (text == "READY") {
      break;
    }
  }
  return c; // `out` stays open for as long as the child may write
}

double cpu_seconds(pid_t pid) {
  std::ifstream in{"/proc/" + std::to_string(pid) + "/schedstat"};
  // schedstat of the main thread only; sum the threads.
  double total = 0;
  for (const auto* kind : {"task"}) {
    std::string command = "cat /proc/" + std::to_string(pid) + "/" + kind + "/*/schedstat";
    FILE* p = ::popen(command.c_str(), "r");
    char line[128];
    while (p != nullptr && std::fgets(line, sizeof(line), p) != nullptr) {
      std::istringstream fields{line};
      double on_cpu_ns = 0;
      fields >> on_cpu_ns;
      total += on_cpu_ns * 1e-9;
    }
    if (p != nullptr) {
      ::pclose(p);
    }
  }
  return total;
}

struct stream_state {
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  grpc::ByteBuffer buffer;
  int stage = 0; // 0 start, 1 write, 2 reading
  clock_type::time_point last{};
};

grpc::ByteBuffer encode(const google::protobuf::Message& m) {
  const grpc::Slice slice{m.SerializeAsString()};
  return grpc::ByteBuffer{&slice, 1};
}

struct totals {
  std::uint64_t tokens = 0;
  std::uint64_t chunks = 0;
  std::vector<float> gaps_ms;
};

void take(const grpc::ByteBuffer& bytes, stream_state& s, bool counting, totals& t, pb::GenerateResponse& message) {
  grpc::Slice slice;
  if (!bytes.TrySingleSlice(&slice).ok() && !bytes.DumpToSingleSlice(&slice).ok()) {
    return;
  }
  if (!message.ParseFromArray(slice.begin(), static_cast<int>(slice.size())) || !message.has_chunk()) {
    return;
  }
  const auto now = clock_type::now();
  if (counting) {
    t.tokens += static_cast<std::uint64_t>(message.chunk().token_ids_size());
    ++t.chunks;
    if (s.last != clock_type::time_point{}) {
      t.gaps_ms.push_back(std::chrono::duration<float, std::milli>(now - s.last).count());
    }
  }
  s.last = now;
}

double quantile(std::vector<float>& values, double q) {
  if (values.empty()) {
    return 0;
  }
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at);
}

int run(const settings& s, const child& server) {
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (std::uint32_t i = 0; i < s.channels; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("bench.channel", static_cast<int>(i)); // else channels share one connection
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(server.address, grpc::InsecureChannelCredentials(), arguments)));
  }
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<stream_state>> streams;
  for (std::uint32_t i = 0; i < s.streams; ++i) {
    auto& state = *streams.emplace_back(std::make_unique<stream_state>());
    state.call =
        stubs[i % s.channels]->PrepareCall(&state.context, "/sglang.grpc.scheduler.SglangScheduler/Generate", &queue);
    state.call->StartCall(&state);
  }
  totals t;
  pb::GenerateResponse message;
  const auto begin = clock_type::now();
  const auto at = [&](double seconds) {
    return begin + std::chrono::microseconds{static_cast<std::int64_t>(seconds * 1e6)};
  };
  const auto measure_from = at(s.warm_up_s);
  const auto until = at(s.warm_up_s + s.seconds);
  bool counting = false;
  double cpu = 0;
  while (clock_type::now() < until) {
    void* tag = nullptr;
    bool ok = false;
    const auto next = queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + std::chrono::milliseconds{50});
    if (!counting && clock_type::now() >= measure_from) {
      counting = true;
      cpu = cpu_seconds(server.pid);
    }
    if (next != grpc::CompletionQueue::GOT_EVENT) {
      continue;
    }
    auto& state = *static_cast<stream_state*>(tag);
    if (!ok) {
      std::cerr << "a stream ended early\n";
      return 1;
    }
    if (state.stage == 0) {
      pb::GenerateRequest request;
      request.set_request_id("bench-" + std::to_string(reinterpret_cast<std::uintptr_t>(tag)));
      request.mutable_tokenized()->add_input_ids(1);
      request.mutable_sampling_params()->set_max_new_tokens(1'000'000);
      request.set_stream(true);
      state.stage = 1;
      state.call->WriteLast(encode(request), grpc::WriteOptions{}, &state);
      continue;
    }
    if (state.stage == 2) {
      take(state.buffer, state, counting, t, message);
    }
    state.stage = 2;
    state.call->Read(&state.buffer, &state);
  }
  cpu = cpu_seconds(server.pid) - cpu;
  const auto tokens = static_cast<double>(t.tokens);
  std::cout << "{\"streams\": " << s.streams << ", \"tokens_per_s\": " << tokens / s.seconds
            << ", \"server_cpu_us_per_token\": " << cpu / tokens * 1e6
            << ", \"tokens_per_chunk\": " << tokens / static_cast<double>(t.chunks)
            << ", \"gap_ms_p50\": " << quantile(t.gaps_ms, 0.5) << ", \"gap_ms_p99\": " << quantile(t.gaps_ms, 0.99)
            << "}" << std::endl;
  for (auto& state : streams) {
    state->context.TryCancel();
  }
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app{"CPU of the gRPC front per token"};
  app.add_option("server", s.server, "path of front_server")->required();
  app.add_option("--streams", s.streams)->capture_default_str();
  app.add_option("--channels", s.channels)->capture_default_str();
  app.add_option("--step-us", s.step_us)->capture_default_str();
  app.add_option("--batch", s.batch)->capture_default_str();
  app.add_option("--seconds", s.seconds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto server = launch(s);
  if (server.address.empty()) {
    std::cerr << "front_server did not start\n";
    return 1;
  }
  const int result = run(s, server);
  ::kill(server.pid, SIGTERM);
  ::waitpid(server.pid, nullptr, 0);
  return result;
}
