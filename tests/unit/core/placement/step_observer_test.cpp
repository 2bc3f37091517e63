#include "core/placement/policies/step_observer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <vector>

namespace rankwise::core {
namespace {

constexpr std::uint16_t ranks = 4;
constexpr double chunk = 4096;

/// Ranks that step together, of which the observer sees what a controller does: placements and outputs.
class stepping_engine {
 public:
  stepping_engine(const step_pace::coefficients& truth, bool decodes, std::uint64_t seed)
      : truth_(truth), decodes_(decodes), random_(seed) {}

  void place(std::uint16_t rank, double tokens) {
    lanes_[rank].queue.push_back({++handle_, tokens, tokens});
    observer.placed(rank, handle_, tokens, now_);
  }
  void step() {
    double longest_decode = truth_.decode_s(0, 0);
    double longest_prompt = 0;
    for (auto& l : lanes_) {
      l.decoded = l.streams;
      longest_decode = std::max(longest_decode, truth_.decode_s(l.streams, l.kv));
      double left = chunk;
      for (auto& p : l.queue) {
        const double piece = std::min(p.left, left);
        p.left -= piece;
        left -= piece;
      }
      longest_prompt = std::max(longest_prompt, chunk - left);
    }
    now_ += from_seconds(longest_decode + truth_.per_prefill_token_s * longest_prompt);
    const auto end = now_;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      auto& l = lanes_[rank];
      bool any = l.decoded > 0;
      now_ += std::chrono::microseconds{200};
      while (!l.queue.empty() && l.queue.front().left <= 0) {
        learn(observer.prefilled(rank, l.queue.front().handle, now_, pace.get()));
        if (decodes_) {
          l.streams += 1;
          l.kv += l.queue.front().tokens;
        }
        l.queue.pop_front();
        any = true;
      }
      l.kv += l.decoded;
      if (l.streams > 0 && static_cast<double>(random_() % 200) < l.streams) {
        l.kv -= l.kv / l.streams;
        l.streams -= 1;
      }
      if (any)
        learn(observer.output(rank, now_, {l.streams, l.kv, chunk, !l.queue.empty()}, pace.get()));
    }
    now_ = end;
  }
  /// `busy`: prompts that wait per rank.
  void run(int steps, std::size_t busy) {
    for (int i = 0; i < steps; ++i) {
      for (std::uint16_t rank = 0; rank < ranks; ++rank)
        while (lanes_[rank].queue.size() < busy && random_() % 3 != 0)
          place(rank, 1.0 + static_cast<double>(random_() % 12'000));
      step();
    }
  }
  [[nodiscard]] double longest_decode_error() const {
    double worst = 0;
    for (const double streams : {1.0, 10.0, 30.0})
      worst = std::max(
          worst, std::abs(pace.get().decode_s(streams, 6000 * streams) / truth_.decode_s(streams, 6000 * streams) - 1));
    return worst;
  }
  [[nodiscard]] double prefill_error() const {
    return std::abs(pace.get().per_prefill_token_s / truth_.per_prefill_token_s - 1);
  }

  step_observer observer;
  step_pace pace;
  bool learns = true;

 private:
  void learn(const std::optional<step_seen>& seen) {
    if (!seen || !learns)
      return;
    if (seen->decoding > 0)
      pace.learn_step(seen->seconds, seen->decoding, seen->kv_tokens, seen->prompt_tokens);
    else
      pace.learn_prefill(seen->seconds, seen->steps * pace.get().base_s, seen->prompt_tokens);
  }

  struct waiting {
    request_handle handle;
    double tokens;
    double left;
  };
  struct lane {
    std::deque<waiting> queue;
    double streams = 0;
    double decoded = 0;
    double kv = 0;
  };
  step_pace::coefficients truth_;
  bool decodes_;
  std::mt19937_64 random_;
  std::vector<lane> lanes_ = std::vector<lane>(ranks);
  request_handle handle_ = 0;
  timestamp now_ = timestamp{} + std::chrono::seconds{100};
};

step_pace::coefficients engine_of_speed(double decode, double prefill) {
  step_pace::coefficients c;
  c.base_s *= decode;
  c.per_request_s *= decode;
  c.per_kv_token_s *= decode;
  c.per_prefill_token_s *= prefill;
  return c;
}

TEST(step_observer, learns_both_from_ranks_that_prefill_and_decode_in_the_same_steps) {
  for (const auto& [decode, prefill] : {std::pair{1.0, 1.0}, {0.3, 3.0}, {2.0, 0.3}})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      stepping_engine e{engine_of_speed(decode, prefill), true, seed};
      e.run(3000, 2);
      e.run(1000, 0); // a time without prompts
      EXPECT_LT(e.prefill_error(), 0.06) << decode << " " << prefill << " " << seed;
      EXPECT_LT(e.longest_decode_error(), 0.08) << decode << " " << prefill << " " << seed;
    }
}

TEST(step_observer, learns_from_prompts_alone_whose_steps_show_only_at_their_ends) {
  for (const double factor : {0.3, 1.0, 3.0})
    for (const std::size_t busy : {std::size_t{1}, std::size_t{4}})
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        stepping_engine e{engine_of_speed(1, factor), false, seed};
        e.run(3000, busy);
        EXPECT_LT(e.prefill_error(), 0.1) << factor << " " << busy << " " << seed;
      }
}

TEST(step_observer, learns_from_prompts_that_come_one_after_the_end_of_the_other) {
  const auto truth = engine_of_speed(1, 3);
  step_observer o;
  step_pace pace;
  timestamp now = timestamp{} + std::chrono::seconds{100};
  for (request_handle h = 1; h <= 400; ++h) {
    now += std::chrono::milliseconds{10};
    o.placed(0, h, 4 * chunk, now);
    now += from_seconds(4 * (truth.base_s + chunk * truth.per_prefill_token_s));
    auto seen = o.prefilled(0, h, now, pace.get());
    if (!seen)
      seen = o.output(0, now, {0, 0, chunk, false}, pace.get());
    if (seen) {
      EXPECT_EQ(seen->decoding, 0);
      pace.learn_prefill(seen->seconds, seen->steps * pace.get().base_s, seen->prompt_tokens);
    } else {
      EXPECT_LE(h, 2u);
    }
  }
  EXPECT_NEAR(pace.get().per_prefill_token_s / truth.per_prefill_token_s, 1, 0.06);
}

TEST(step_observer, follows_without_learning_where_it_must_not) {
  stepping_engine e{engine_of_speed(2, 2), true, 1};
  e.learns = false;
  e.run(500, 2);
  EXPECT_GT(e.observer.steps(), 400u);
  EXPECT_GT(e.prefill_error(), 0.4);
  e.learns = true;
  e.run(3000, 2);
  EXPECT_LT(e.prefill_error(), 0.06);
}

TEST(step_observer, what_is_gone_with_its_rank_or_its_client_holds_nothing_up) {
  stepping_engine e{engine_of_speed(0.5, 2), true, 1};
  e.run(100, 2);
  for (request_handle h = 1'000'000; h < 1'000'100; ++h) { // never seen to begin
    e.observer.placed(5, h, 100'000, timestamp{} + std::chrono::seconds{100});
    e.observer.placed(6, h + 1000, 100'000, timestamp{} + std::chrono::seconds{100});
  }
  e.observer.closed(5);
  for (request_handle h = 1'000'000; h < 1'000'100; ++h)
    e.observer.dropped(6, h + 1000);
  e.run(3000, 2);
  EXPECT_LT(e.prefill_error(), 0.06);
}

TEST(step_observer, a_rank_that_is_closed_while_it_decodes_and_prefills_leaves_nothing_in_the_steps_of_the_others) {
  const auto steps_after = [](bool close) {
    step_observer o;
    const step_pace pace;
    timestamp now = timestamp{} + std::chrono::seconds{100};
    o.placed(1, 1, 100 * chunk, now);
    for (int i = 0; i < 3; ++i) {
      now += std::chrono::milliseconds{30};
      o.output(0, now, {1, 1000, chunk, false}, pace.get());
      o.output(1, now, {50, 500'000, chunk, true}, pace.get()); // the longer batch
    }
    if (close)
      o.closed(1);
    std::vector<step_seen> seen;
    for (int i = 0; i < 5; ++i) {
      now += std::chrono::milliseconds{30};
      if (const auto step = o.output(0, now, {1, 1000, chunk, false}, pace.get()))
        seen.push_back(*step);
    }
    return seen;
  };
  EXPECT_TRUE(steps_after(false).empty()) << "a prompt of unknown end is in each of them";
  const auto seen = steps_after(true);
  ASSERT_GE(seen.size(), 3u);
  EXPECT_EQ(seen.back().decoding, 1);
  EXPECT_EQ(seen.back().prompt_tokens, 0);
}

TEST(step_observer, a_chunk_too_small_to_be_meant_is_none_that_is_known) {
  EXPECT_EQ(chunk_tokens_of(63), chunk_tokens_of(0));
  EXPECT_EQ(chunk_tokens_of(64), 64);
  step_observer o;
  const step_pace pace;
  timestamp now = timestamp{} + std::chrono::seconds{100};
  o.output(0, now, {0, 0, 1, false}, pace.get());
  o.placed(0, 1, 4 * chunk_tokens_of(0), now);
  now += std::chrono::seconds{1};
  o.prefilled(0, 1, now, pace.get());
  o.output(0, now, {0, 0, 1, false}, pace.get());
  now += std::chrono::seconds{1};
  const auto seen = o.output(0, now, {0, 0, 1, false}, pace.get());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->steps, 4) << "of an engine that registers one token";
}

} // namespace
} // namespace rankwise::core
