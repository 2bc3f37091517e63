#pragma once

#include "core/request/request_intake.hpp"
#include "core/request/stream_sink.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

/// Stands where the node would: answers every request with the tokens that any client can check.
namespace rankwise::testing {

struct echo_options {
  std::chrono::microseconds step{10'000}; ///< Each open stream gets one token per step.
  std::size_t streams_per_batch = 64;     ///< As if each rank ran so many.
  std::uint32_t dp_size = 8;
  std::string disaggregation_mode = "null";
  std::string engine_version = "sglang-0.5.23";
};

/// Token i of sample s is (crc32(rid, or rid-s when n > 1) + i) % 94. Runs its steps on a thread of its own.
class echo_engine final : public core::request_intake {
 public:
  explicit echo_engine(echo_options options);
  ~echo_engine() override;

  void start(core::stream_sink& sink);
  void stop();

  core::owner_id submit(core::stream_id stream, core::request_ptr request) noexcept override;
  void cancel(core::stream_id stream, core::owner_id owner, core::failure why) noexcept override;
  void abort(std::string rid) noexcept override;
  [[nodiscard]] core::node_info info() const override;
  [[nodiscard]] std::vector<core::rank_load> loads() const override;

  [[nodiscard]] std::uint64_t cancels() const noexcept { return cancels_.load(); }

 private:
  struct running {
    core::stream_id stream = 0;
    core::request_ptr request;
    std::vector<std::uint32_t> sums; ///< One a sample.
    std::uint32_t next = 0;          ///< Index of the next token.
  };

  void run();
  void step();

  const echo_options options_;
  core::stream_sink* sink_ = nullptr;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::vector<running> open_;
  std::vector<core::stream_batch> unsent_;
  std::atomic<std::uint64_t> cancels_{0};
};

} // namespace rankwise::testing
