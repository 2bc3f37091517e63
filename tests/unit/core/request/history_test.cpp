#include "core/request/history.hpp"

#include <gmock/gmock.h>

namespace rankwise::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// One stream with one sample on rank 2, epoch 4; a test spoils it.
class history : public testing::Test {
 protected:
  history_event event(history_kind kind) {
    history_event e;
    e.kind = kind;
    e.stream = 9;
    e.handle = 77;
    e.rank = {0, 2};
    e.epoch = 4;
    return e;
  }
  void say(history_kind kind) { checker.record(event(kind)); }
  void tokens(std::uint32_t first, std::uint32_t count) {
    auto e = event(history_kind::tokens);
    e.first_index = first;
    e.count = count;
    checker.record(e);
  }
  void begin() {
    say(history_kind::accepted);
    say(history_kind::placed);
    tokens(0, 2);
  }
  void fail() {
    auto e = event(history_kind::outcome);
    e.ended_as = outcome_kind::failed;
    checker.record(e);
  }
  void end() {
    say(history_kind::finished);
    say(history_kind::outcome);
    checker.finish();
  }
  history_checker checker;
};

TEST_F(history, a_right_one_has_no_violations) {
  begin();
  tokens(2, 3);
  end();
  EXPECT_THAT(checker.violations(), IsEmpty());
  EXPECT_EQ(checker.accepted(), 1u);
  EXPECT_EQ(checker.ended(), 1u);
}

TEST_F(history, a_token_twice_is_caught) {
  begin();
  tokens(1, 1);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("token 1 where 2 was due")));
}

TEST_F(history, a_gap_is_caught) {
  begin();
  tokens(3, 1);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("token 3 where 2 was due")));
}

TEST_F(history, a_token_after_the_outcome_is_caught) {
  begin();
  fail();
  tokens(2, 1);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("tokens after the outcome")));
}

TEST_F(history, a_token_after_the_sample_is_complete_is_caught) {
  begin();
  say(history_kind::finished);
  tokens(2, 1);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("after the sample was complete")));
}

TEST_F(history, a_token_of_an_old_epoch_is_caught) {
  begin();
  auto e = event(history_kind::tokens);
  e.first_index = 2;
  e.count = 1;
  e.epoch = 3;
  checker.record(e);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("epoch 3")));
}

TEST_F(history, a_token_of_an_old_attempt_or_another_rank_is_caught) {
  begin();
  auto e = event(history_kind::tokens);
  e.first_index = 2;
  e.attempt = 1;
  checker.record(e);
  e.attempt = 0;
  e.rank = {0, 3};
  checker.record(e);
  EXPECT_EQ(checker.violations().size(), 2u);
}

TEST_F(history, two_outcomes_are_caught) {
  begin();
  fail();
  fail();
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("outcome after the outcome")));
}

TEST_F(history, a_stream_that_never_ends_is_caught) {
  begin();
  checker.finish();
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("never ended")));
}

TEST_F(history, a_token_without_a_placement_is_caught) {
  say(history_kind::accepted);
  tokens(0, 1);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("before a placement")));
}

TEST_F(history, a_second_placement_under_one_attempt_or_after_a_token_is_caught) {
  say(history_kind::accepted);
  say(history_kind::placed);
  say(history_kind::placed);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("twice under one attempt")));
  tokens(0, 1);
  auto e = event(history_kind::placed);
  e.attempt = 1;
  checker.record(e);
  EXPECT_THAT(checker.violations().back(), HasSubstr("after its first token"));
}

TEST_F(history, a_refusal_after_acceptance_and_an_outcome_without_it_are_caught) {
  say(history_kind::outcome);
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("without having been accepted")));
  history_checker other;
  other.record(event(history_kind::accepted));
  auto e = event(history_kind::outcome);
  e.ended_as = outcome_kind::refused;
  other.record(e);
  EXPECT_THAT(other.violations(), ElementsAre(HasSubstr("refused after")));
}

TEST_F(history, a_stream_that_completes_with_an_unfinished_sample_is_caught) {
  say(history_kind::accepted);
  say(history_kind::placed);
  tokens(0, 2);
  say(history_kind::outcome); // completed
  EXPECT_THAT(checker.violations(), ElementsAre(HasSubstr("completed while sample 0 was not")));
}

TEST_F(history, a_stream_that_was_refused_at_once_is_right) {
  auto e = event(history_kind::outcome);
  e.ended_as = outcome_kind::refused;
  checker.record(e);
  checker.finish();
  EXPECT_THAT(checker.violations(), IsEmpty());
}

} // namespace
} // namespace rankwise::core
