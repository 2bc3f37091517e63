#include "node_fixture.hpp"
#include "record/request_stream.hpp"

namespace rankwise {
namespace {

using namespace std::chrono_literals;
using testing::IsEmpty;

/// What a request stream is told by the actors of a node.
class recorded_node : public test::node {
 protected:
  void record_pair() {
    recorders = {{&prefill_}, {&decode_}};
    start_pair();
    static_cast<void>(stream_.take(std::nullopt, now()));
  }
  void record_one_pool(std::uint16_t ranks) {
    recorders = {{&unified_}};
    start(ranks);
    static_cast<void>(stream_.take(std::nullopt, now()));
  }
  /// After as long as one may take that is placed again.
  std::vector<std::shared_ptr<const record::recorded_request>> told() {
    advance(record::request_stream::again_within + 100ms);
    return stream_.take(0, now()).requests;
  }
  void expect_told_once(std::optional<std::uint32_t> output_tokens) {
    const auto requests = told();
    ASSERT_EQ(requests.size(), 1u);
    EXPECT_EQ(requests[0]->output_tokens, output_tokens);
  }
  struct legs {
    add prefill;
    add decode;
  };
  legs pair_of(const std::string& rid) {
    const auto adds = adds_of(rid);
    EXPECT_EQ(adds.size(), 2u) << rid;
    legs result;
    for (const auto& a : adds)
      (a.rank.pool == 0 ? result.prefill : result.decode) = a;
    return result;
  }

 private:
  record::request_stream stream_;
  record::stream_recorder prefill_{stream_, core::pool_role::prefill};
  record::stream_recorder decode_{stream_, core::pool_role::decode};
  record::stream_recorder unified_{stream_, core::pool_role::unified};
};

TEST_F(recorded_node, a_request_whose_rank_died_after_its_first_token_ends_without_output) {
  record_one_pool(1);
  submit(1, "streams");
  output(only_add("streams"), {1, 2});
  say(event(link_event_kind::lost, 0, 1));
  ASSERT_EQ(sink.outcomes[1].size(), 1u);
  expect_told_once(std::nullopt);
}

TEST_F(recorded_node, a_request_whose_rank_was_replaced_after_its_first_token_ends_without_output) {
  record_one_pool(1);
  submit(1, "streams");
  output(only_add("streams"), {1, 2});
  join(0, 2);
  expect_told_once(std::nullopt);
}

TEST_F(recorded_node, a_request_that_moves_from_a_dead_rank_is_told_once_with_its_output) {
  record_one_pool(2);
  submit(1, "moves");
  const auto first = only_add("moves");
  say(event(link_event_kind::lost, first.rank.rank, 1));
  ASSERT_EQ(adds_of("moves").size(), 2u);
  output(adds_of("moves")[1], {1, 2, 3}, core::finish_reason::stop);
  expect_told_once(3);
}

TEST_F(recorded_node, a_pair_that_is_cancelled_while_its_prefill_leg_alone_has_a_rank_ends_without_output) {
  record_pair();
  // Cancelled before RequestManager knows the prefill rank: nothing is ordered of the decode pool.
  post(1, "gone");
  caf::anon_send(directory->manager_for(0).handle, cancel_request{1, core::failure::client_cancelled});
  settle();
  expect_told_once(std::nullopt);
}

TEST_F(recorded_node, a_pair_that_runs_long_after_its_prefill_leg_ended_is_told_once_with_its_output) {
  record_pair();
  submit(1, "long");
  const auto legs = pair_of("long");
  output(legs.prefill, {1}, core::finish_reason::stop);
  EXPECT_THAT(told(), IsEmpty());
  output(legs.decode, {1, 2}, core::finish_reason::stop);
  expect_told_once(2);
}

TEST_F(recorded_node, a_pair_whose_prefill_rank_dies_after_it_handed_over_is_told_once_with_its_output) {
  record_pair();
  submit(1, "goes on");
  const auto decode = pair_of("goes on").decode;
  output(decode, {1});
  say(event(link_event_kind::lost, 0, 1)); // before the end of its prefill leg came
  EXPECT_THAT(told(), IsEmpty());
  output(decode, {2}, core::finish_reason::stop);
  expect_told_once(2);
}

TEST_F(recorded_node, a_pair_whose_prefill_rank_dies_before_is_told_once_without_output) {
  record_pair();
  submit(1, "nowhere to go");
  ASSERT_EQ(adds_of("nowhere to go").size(), 2u);
  say(event(link_event_kind::lost, 0, 1));
  expect_told_once(std::nullopt);
}

} // namespace
} // namespace rankwise
