#pragma once

#include "sim/engine_rank_model.hpp"
#include "wire/sglang/engine_rid.hpp"

#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

/// Runs one rank in virtual time and keeps what each request got.
namespace rankwise::sim {

struct seen_request {
  std::vector<std::int32_t> tokens;
  core::finish_reason finish = core::finish_reason::none;
  std::int32_t status = 0;
  std::string message;
  std::uint32_t cached_tokens = 0;
  double first_token_s = -1;
  double end_s = -1;
};

class model_driver {
 public:
  explicit model_driver(engine_rank_options options, std::uint64_t seed = 1) : model(std::move(options), seed) {}

  void add(rank_request request) {
    model.add(now, std::move(request), outputs_);
    collect();
  }
  void abort(const std::string& rid) {
    model.abort(now, rid, outputs_);
    collect();
  }
  /// Steps until nothing is due any more, or until `until_s` has passed.
  void run(double until_s = 1e9) {
    const core::timestamp end = core::timestamp{} + seconds(until_s);
    for (auto next = model.next_event_time(); next && *next <= end; next = model.next_event_time()) {
      ASSERT_GE(*next, last_event_) << "time ran backwards";
      now = std::max(now, *next);
      last_event_ = *next;
      model.step(now, outputs_);
      collect();
    }
    if (until_s < 1e9) {
      now = std::max(now, end);
    }
  }
  [[nodiscard]] double at() const { return core::to_seconds(now - core::timestamp{}); }
  static core::duration seconds(double s) { return core::duration(static_cast<std::int64_t>(s * 1e9)); }

  engine_rank_model model;
  core::timestamp now{};
  std::map<std::string, seen_request> seen;
  std::vector<kv_query> queries;
  std::vector<kv_answer> answers;
  std::size_t steps_with_output = 0;

 private:
  void collect() {
    const auto& batch = outputs_.batch;
    steps_with_output += batch.items.empty() ? 0U : 1U;
    for (const auto& item : batch.items) {
      auto& request = seen[item.rid];
      EXPECT_EQ(request.finish, core::finish_reason::none) << item.rid << " got output after its end";
      if (request.tokens.empty() && item.token_count > 0) {
        request.first_token_s = at();
      }
      for (std::uint32_t i = 0; i < item.token_count; ++i) {
        request.tokens.push_back(batch.tokens[item.token_offset + i]);
      }
      EXPECT_EQ(item.completion_tokens, request.tokens.size());
      request.finish = item.finish;
      request.cached_tokens = item.cached_tokens;
      request.message = item.finish_message;
      if (item.finish != core::finish_reason::none) {
        request.end_s = at();
      }
    }
    for (const auto& abort : outputs_.aborts) {
      auto& request = seen[abort.rid];
      request.finish = core::finish_reason::abort;
      request.status = abort.status;
      request.message = abort.message;
      request.end_s = at();
    }
    queries.insert(queries.end(), outputs_.queries.begin(), outputs_.queries.end());
    answers.insert(answers.end(), outputs_.answers.begin(), outputs_.answers.end());
    outputs_.clear();
  }

  rank_outputs outputs_;
  core::timestamp last_event_{};
};

inline rank_request ask(std::string rid, std::uint32_t input_tokens, std::uint32_t new_tokens) {
  rank_request request;
  request.rid = std::move(rid);
  request.input_tokens = input_tokens;
  request.max_new_tokens = new_tokens;
  return request;
}

inline rank_request ask_in_room(std::string rid, std::uint32_t input_tokens, std::uint32_t new_tokens,
                                std::int64_t room) {
  auto request = ask(std::move(rid), input_tokens, new_tokens);
  request.bootstrap = core::bootstrap_info{"127.0.0.1", 9000, room};
  return request;
}

/// 10 ms a step, 1 ms per 100 prompt tokens, nothing else.
inline engine_rank_options plain_options() {
  engine_rank_options options;
  options.kv_capacity_tokens = 10'000;
  options.running_requests_max = 8;
  options.chunk_tokens = 1000;
  options.prefix_block_tokens = 10;
  options.step_time = {10e-3, 0, 0, 1e-5};
  options.kv_transfer_base_s = 5e-3;
  options.kv_transfer_per_token_s = 0;
  return options;
}

} // namespace rankwise::sim
