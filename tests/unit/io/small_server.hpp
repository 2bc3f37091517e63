#pragma once

#include "io/grpc/server.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

/// A gRPC server with the fewest methods that the tests of frames, floods and sizes need.
namespace rankwise::testing {

inline constexpr std::string_view echo_path = "/test.Service/Echo"; ///< Unary: sends the request back.
inline constexpr std::string_view size_path = "/test.Service/Size"; ///< Unary: the request's size, as text.
inline constexpr std::string_view hold_path = "/test.Service/Hold"; ///< Server streaming: sends nothing, never ends.
/// Server streaming: endless messages of as many bytes as the request says, as text.
inline constexpr std::string_view pour_path = "/test.Service/Pour";

class holding_call final : public io::grpc::call_handler {
 public:
  io::grpc::pull_result pull(std::string&, io::grpc::status&) override { return io::grpc::pull_result::nothing_now; }
};

class pouring_call final : public io::grpc::call_handler {
 public:
  explicit pouring_call(std::size_t bytes) : message_(bytes, 'p') {}
  io::grpc::pull_result pull(std::string& out, io::grpc::status&) override {
    out += message_;
    return io::grpc::pull_result::message;
  }

 private:
  std::string message_;
};

inline std::unique_ptr<io::grpc::server> start_small_server(const io::grpc::server_options& options = {}) {
  using namespace io::grpc;
  using started = tl::expected<std::unique_ptr<call_handler>, status>;
  using answer = tl::expected<std::string, status>;
  auto out = std::make_unique<server>(options);
  out->add_unary(std::string{echo_path},
                 [](call&, std::string_view request) -> answer { return std::string{request}; });
  out->add_unary(std::string{size_path},
                 [](call&, std::string_view request) -> answer { return std::to_string(request.size()); });
  out->add_streaming(std::string{hold_path},
                     [](call&, std::string_view) -> started { return std::make_unique<holding_call>(); });
  out->add_streaming(std::string{pour_path}, [](call&, std::string_view request) -> started {
    return std::make_unique<pouring_call>(std::stoul(std::string{request}));
  });
  const auto begun = out->start();
  EXPECT_TRUE(begun) << begun.error();
  return out;
}

template <class F>
bool eventually(F&& f, std::chrono::milliseconds limit = std::chrono::milliseconds{3000}) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!f()) {
    if (std::chrono::steady_clock::now() > until) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

} // namespace rankwise::testing
