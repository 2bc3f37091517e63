#include "io/zmq/engine_hub.hpp"

#include "io/zmq/address_block.hpp"
#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/layouts.hpp"
#include "wire/sglang/output_codec.hpp"
#include "wire/sglang/request_codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rankwise::io {
namespace {

using namespace std::chrono_literals;
namespace sg = wire::sglang;
using core::frame_kind;
using core::send_result;

/// The engine's side of one rank, on real sockets.
class fake_rank {
 public:
  fake_rank(zmq::context_t& context, const std::string& handshake, std::uint16_t number)
      : context_(context), number_(number), handshake_(context, zmq::socket_type::dealer) {
    handshake_.set(zmq::sockopt::linger, 0);
    handshake_.set(zmq::sockopt::routing_id, sg::encode_identity(number));
    handshake_.connect(handshake);
  }

  /// HELLO, and INIT back.
  void hello() {
    handshake_.send(zmq::buffer(sg::encode_handshake({sg::handshake_status::hello, true, true})));
    handshake_.set(zmq::sockopt::rcvtimeo, 5000);
    zmq::message_t frame;
    ASSERT_TRUE(handshake_.recv(frame));
    const auto init = sg::decode_init(frame.to_string_view());
    ASSERT_TRUE(init);
    input_address_ = init->input_endpoint;
    output_address_ = init->output_endpoint;
  }

  void connect() {
    connect_input();
    do_register();
    output = zmq::socket_t{context_, zmq::socket_type::push};
    output.set(zmq::sockopt::linger, 1000);
    output.connect(output_address_);
  }

  /// Requests can be received; it has not registered on this connection.
  void connect_input() {
    input = zmq::socket_t{context_, zmq::socket_type::dealer};
    input.set(zmq::sockopt::linger, 0);
    input.set(zmq::sockopt::routing_id, sg::encode_identity(number_));
    input.connect(input_address_);
  }

  /// A good registration of a rank of an engine of `size`, after `change`.
  void do_register(const std::function<void(sg::registration&)>& change = {}) {
    sg::registration r;
    r.max_model_len = 1000;
    r.max_num_seqs = 8;
    r.kv_cache_size_tokens = 10'000;
    r.data_parallel_size = size;
    r.data_parallel_rank = number_;
    r.positional_layouts = sg::sglang_0_5_23_layouts();
    if (change)
      change(r);
    input.send(zmq::buffer(sg::encode_registration(r)), zmq::send_flags::none);
  }

  void say(const std::string& rid, std::int32_t token) {
    sg::token_output out;
    out.tokens = {token};
    sg::output_item item;
    item.rid = rid;
    item.token_count = 1;
    out.items.push_back(item);
    out.engine_index = says_rank.value_or(number_);
    out.load = sg::load_tail{1, 0, 10, 10'000};
    output.send(zmq::buffer(sg::encode_token_output(out)), zmq::send_flags::none);
  }

  /// HELLO, without waiting for an answer.
  void knock() {
    handshake_.send(zmq::buffer(sg::encode_handshake({sg::handshake_status::hello, true, true})),
                    zmq::send_flags::dontwait);
  }

  /// The payload of the next frame pair; empty when none came in time.
  std::string receive(std::chrono::milliseconds timeout = 5s) {
    input.set(zmq::sockopt::rcvtimeo, static_cast<int>(timeout.count()));
    zmq::message_t type;
    zmq::message_t payload;
    if (!input.recv(type) || !type.more() || !input.recv(payload))
      return {};
    return payload.to_string();
  }

  [[nodiscard]] const std::string& input_address() const { return input_address_; }

  zmq::socket_t input;
  zmq::socket_t output;
  std::optional<std::uint32_t> says_rank; ///< in its outputs, in place of its own number
  std::uint32_t size = 3;                 ///< of its engine, as it registers

 private:
  zmq::context_t& context_;
  std::uint16_t number_;
  zmq::socket_t handshake_;
  std::string input_address_;
  std::string output_address_;
};

class hub_test : public testing::Test {
 protected:
  static engine_hub_options boot(core::node_boot number) {
    engine_hub_options options;
    options.boot = number;
    return options;
  }

  void start(engine_hub_options options = {}, const std::vector<rank_record>& records = {}) {
    options.pools = {{"unified", "tcp://127.0.0.1:0", 4, false, {}}};
    engine_hub_callbacks callbacks;
    callbacks.on_link_event = [this](link_event e) {
      const std::lock_guard guard{mutex_};
      events_.push_back(std::move(e));
    };
    callbacks.on_outputs = [this](core::output_batch b) {
      const std::lock_guard guard{mutex_};
      batches_.push_back(std::move(b));
    };
    callbacks.on_load_report = [] {};
    callbacks.now = [] { return std::chrono::time_point_cast<core::duration>(std::chrono::steady_clock::now()); };
    callbacks.on_dispatched = [this](core::duration d) {
      const std::lock_guard guard{mutex_};
      dispatched_.push_back(d);
    };
    callbacks.on_records = [this](std::vector<rank_record> r) {
      const std::lock_guard guard{mutex_};
      records_.push_back(std::move(r));
    };
    hub = std::make_unique<engine_hub>(std::move(options), std::move(callbacks), std::make_shared<core::load_board>(4));
    EXPECT_THAT(hub->restore(records), testing::IsEmpty());
    hub->start();
  }
  fake_rank dial(std::uint16_t number = 0) { return {context, hub->handshake_endpoint(0), number}; }
  /// A rank that is registered under `epoch`.
  fake_rank join(std::uint16_t number = 0, core::rank_epoch epoch = 1, std::uint32_t size = 3) {
    auto rank = dial(number);
    rank.size = size;
    rank.hello();
    rank.connect();
    EXPECT_TRUE(heard(link_event_kind::registered, number, epoch));
    return rank;
  }

  static bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds timeout = 5s) {
    for (const auto until = std::chrono::steady_clock::now() + timeout; std::chrono::steady_clock::now() < until;) {
      if (holds())
        return true;
      std::this_thread::sleep_for(1ms);
    }
    return holds();
  }
  bool heard(link_event_kind kind, std::uint16_t rank, core::rank_epoch epoch, std::chrono::milliseconds timeout = 5s) {
    return eventually(
        [&] {
          const std::lock_guard guard{mutex_};
          return std::any_of(events_.begin(), events_.end(), [&](const link_event& e) {
            return e.kind == kind && e.rank.rank == rank && e.epoch == epoch;
          });
        },
        timeout);
  }
  /// The cause of the first event of a kind of a rank, waited for; empty when there was none.
  std::string cause_of(link_event_kind kind, std::uint16_t rank, core::rank_epoch epoch) {
    EXPECT_TRUE(heard(kind, rank, epoch));
    const std::lock_guard guard{mutex_};
    for (const auto& e : events_)
      if (e.kind == kind && e.rank.rank == rank && e.epoch == epoch)
        return e.cause;
    return {};
  }
  /// Forgets all events so far.
  void forget_events() {
    const std::lock_guard guard{mutex_};
    events_.clear();
  }
  send_result send(int number, core::rank_epoch epoch = 1, frame_kind kind = frame_kind::add,
                   core::timestamp accepted_at = {}) {
    return hub->send({0, 0}, epoch, {kind, std::to_string(number), accepted_at});
  }

  zmq::context_t context;
  std::mutex mutex_;
  std::vector<link_event> events_;
  std::vector<core::output_batch> batches_;
  std::vector<core::duration> dispatched_;
  std::vector<std::vector<rank_record>> records_;
  std::unique_ptr<engine_hub> hub; // last: its threads use what stands above
};

TEST_F(hub_test, frames_of_a_rank_arrive_in_order_whether_they_had_to_wait_or_not) {
  start();
  auto rank = dial();
  rank.hello();
  for (int i = 0; i < 100; ++i) // nobody is there to take them yet
    ASSERT_EQ(send(i), send_result::queued);
  rank.connect();
  for (int i = 100; i < 3000; ++i)
    ASSERT_EQ(send(i, 1, i % 10 == 0 ? frame_kind::abort : frame_kind::add), send_result::queued);
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(rank.receive(), std::to_string(i));
  EXPECT_EQ(hub->counters().frames_sent, 3000U);
  EXPECT_EQ(send(0, 2), send_result::unknown_link);
}

TEST_F(hub_test, a_request_counts_as_dispatched_when_zeromq_has_it) {
  start();
  auto rank = dial();
  rank.hello();
  const auto before = std::chrono::time_point_cast<core::duration>(std::chrono::steady_clock::now());
  send(1, 1, frame_kind::add, before);
  send(2); // without a time
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(dispatched_.empty());
  rank.connect();
  EXPECT_EQ(rank.receive(), "1");
  EXPECT_EQ(rank.receive(), "2");
  const std::lock_guard guard{mutex_};
  ASSERT_EQ(dispatched_.size(), 1U);
  EXPECT_GE(dispatched_[0], 50ms);
}

TEST_F(hub_test, the_queue_of_a_rank_has_a_cap_that_leaves_room_for_aborts) {
  engine_hub_options options;
  options.send_queue_requests_max = 3;
  options.send_queue_bytes_max = 10;
  start(std::move(options));
  auto rank = dial();
  rank.hello();
  EXPECT_EQ(hub->send({0, 0}, 1, {frame_kind::add, "12345678901", {}}), send_result::queue_full_bytes);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(send(i), send_result::queued);
  EXPECT_EQ(send(3), send_result::queue_full_requests);
  EXPECT_EQ(send(4, 1, frame_kind::abort), send_result::queued);
  EXPECT_EQ(hub->counters().send_queue_full, 2U);
  rank.connect();
  for (const char* wanted : {"0", "1", "2", "4"})
    EXPECT_EQ(rank.receive(), wanted);
  ASSERT_TRUE(eventually([&] { return send(5) == send_result::queued; }));
  EXPECT_EQ(rank.receive(), "5");
}

TEST_F(hub_test, a_registration_that_comes_while_requests_are_sent_is_heard) {
  start();
  std::vector<fake_rank> ranks;
  for (core::rank_epoch epoch = 1; epoch <= 30; ++epoch) {
    auto rank = dial();
    rank.hello();
    std::atomic<bool> stop{false};
    std::vector<std::thread> spam;
    for (int i = 0; i < 2; ++i)
      spam.emplace_back([&, i] {
        while (!stop)
          send(i, epoch);
      });
    rank.connect();
    EXPECT_TRUE(heard(link_event_kind::registered, 0, epoch)) << epoch;
    stop = true;
    for (auto& thread : spam)
      thread.join();
    ranks.push_back(std::move(rank));
  }
}

TEST_F(hub_test, a_rank_whose_connection_breaks_is_lost_and_what_waited_for_it_is_dropped) {
  start();
  auto rank = join();
  rank.input.close();
  ASSERT_TRUE(heard(link_event_kind::lost, 0, 1));
  EXPECT_EQ(send(1), send_result::unknown_link);
  rank.connect(); // the same process again, without HELLO
  ASSERT_TRUE(heard(link_event_kind::reconnected, 0, 2));
  EXPECT_EQ(send(2), send_result::unknown_link);
  EXPECT_EQ(send(3, 2), send_result::queued);
  EXPECT_EQ(rank.receive(), "3");
}

TEST_F(hub_test, a_stranger_at_the_endpoint_of_a_rank_does_not_take_it_down) {
  start();
  auto rank = join();
  for (const bool as_zeromq : {false, true}) {
    if (as_zeromq) {
      zmq::socket_t stranger{context, zmq::socket_type::dealer};
      stranger.set(zmq::sockopt::linger, 0);
      stranger.connect(rank.input_address());
      std::this_thread::sleep_for(50ms);
    } else {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const auto address = rank.input_address();
      to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
      ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
      ::close(fd);
    }
  }
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(send(1), send_result::queued);
  EXPECT_EQ(rank.receive(), "1");
  {
    const std::lock_guard guard{mutex_};
    EXPECT_TRUE(std::none_of(events_.begin(), events_.end(),
                             [](const link_event& e) { return e.kind == link_event_kind::lost; }));
  }
  rank.input.close();
  EXPECT_TRUE(heard(link_event_kind::lost, 0, 1));
}

TEST_F(hub_test, a_rank_that_is_gone_as_soon_as_it_registered_is_lost) {
  start();
  int registered = 0;
  for (core::rank_epoch epoch = 1; epoch <= 40; ++epoch) {
    auto rank = dial();
    rank.hello();
    rank.connect();
    std::this_thread::sleep_for(std::chrono::microseconds{50 * epoch});
    rank.input.close();
    if (!heard(link_event_kind::registered, 0, epoch, 20ms))
      continue; // its words went with it
    ++registered;
    EXPECT_TRUE(heard(link_event_kind::lost, 0, epoch)) << epoch;
  }
  EXPECT_GT(registered, 0);
}

TEST_F(hub_test, outputs_beyond_one_round_of_a_rank_are_all_read_in_order) {
  engine_hub_options options;
  options.frames_per_round_max = 2;
  start(std::move(options));
  auto first = join(0);
  auto second = join(1);
  const auto say = [](fake_rank& rank, std::int32_t token) {
    rank.say(sg::make_engine_rid("r", std::nullopt, 7, 0), token);
  };
  for (std::int32_t i = 0; i < 200; ++i) {
    say(first, i);
    say(second, i);
  }
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard{mutex_};
    return batches_.size() == 400;
  }));
  std::map<std::uint16_t, std::int32_t> next;
  for (const auto& batch : batches_)
    EXPECT_EQ(batch.tokens.at(0), next[batch.rank.rank]++);
}

// 47. outputs of another rank
TEST_F(hub_test, outputs_that_name_another_rank_than_their_link_are_dropped_and_counted) {
  start();
  auto rank = join(1);
  rank.says_rank = 0;
  rank.say(sg::make_engine_rid("r", std::nullopt, 7, 0), 1);
  rank.say(sg::make_engine_rid("r", std::nullopt, 7, 0), 2);
  ASSERT_TRUE(eventually([&] { return hub->counters().outputs_of_other_ranks == 2; }));
  EXPECT_EQ(hub->counters().reports, 0U) << "a report on the load of another rank";
  EXPECT_EQ(hub->last_output({0, 1}), core::timestamp{}) << "no sign of life";
  rank.says_rank.reset();
  rank.say(sg::make_engine_rid("r", std::nullopt, 7, 0), 3);
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard{mutex_};
    return !batches_.empty();
  }));
  EXPECT_EQ(batches_[0].tokens, std::vector<std::int32_t>({3}));
  EXPECT_EQ(batches_[0].rank.rank, 1);
  EXPECT_EQ(hub->counters().reports, 1U);
  EXPECT_EQ(hub->counters().outputs_of_other_ranks, 2U);
}

// 49. only the first rank that answers
TEST_F(hub_test, a_new_process_has_all_of_its_ranks_back_not_only_the_first_that_answers) {
  start(boot(5));
  std::vector<fake_rank> ranks;
  for (std::uint16_t i = 0; i < 3; ++i)
    ranks.push_back(join(i));
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard{mutex_};
    return !records_.empty() && records_.back().size() == 3;
  }));
  const auto records = records_.back();
  hub.reset();
  events_.clear();
  start(boot(6), records);
  for (std::uint16_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(heard(link_event_kind::reconnected, i, 2)) << i;
    EXPECT_EQ(hub->send({0, i}, 2, {frame_kind::add, "new", {}}), send_result::queued);
    EXPECT_EQ(ranks[i].receive(), "new");
  }
}

TEST_F(hub_test, a_new_process_has_its_ranks_back_without_a_handshake_and_ends_what_they_run_for_the_old_one) {
  start(boot(5));
  auto rank = join(1);
  ASSERT_TRUE(eventually([&] { return !records_.empty() && records_.back().size() == 1; }));
  const auto records = records_.back();
  hub.reset(); // the old process is gone
  events_.clear();
  start(boot(6), records);
  ASSERT_TRUE(heard(link_event_kind::restored, 1, 1));
  ASSERT_TRUE(heard(link_event_kind::reconnected, 1, 2));
  EXPECT_EQ(hub->send({0, 1}, 2, {frame_kind::add, "new", {}}), send_result::queued);
  EXPECT_EQ(rank.receive(), "new");
  const auto old = sg::make_engine_rid("old", std::nullopt, 9, 0, 5);
  rank.say(old, 1);
  EXPECT_EQ(rank.receive(), sg::encode_abort({old}));
  rank.say(old, 2); // once is enough
  rank.say(sg::make_engine_rid("mine", std::nullopt, 9, 0, 6), 3);
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard{mutex_};
    return !batches_.empty();
  }));
  EXPECT_EQ(batches_[0].tokens, std::vector<std::int32_t>({3}));
  EXPECT_EQ(hub->counters().foreign_outputs, 2U);
  EXPECT_EQ(hub->counters().foreign_aborts, 1U);
}

// 45. one rank registers nonsense
TEST_F(hub_test, an_invalid_registration_refuses_its_rank_alone_until_it_registers_with_good_values) {
  start();
  auto good = join(0);
  auto bad = dial(1);
  bad.hello();
  const std::pair<std::function<void(sg::registration&)>, const char*> cases[] = {
      {[](auto& r) { r.kv_cache_size_tokens = 0; },
       "registration: kv_cache_size_tokens 0: must be from 1 to 1099511627776"},
      {[](auto& r) { r.max_num_seqs = 0; }, "registration: max_num_seqs 0: must be from 1 to 2147483647"},
      {[](auto& r) { r.max_model_len = 0; }, "registration: max_model_len 0: must be from 1 to 1099511627776"},
      {[](auto& r) { r.data_parallel_size = 0; },
       "registration: data_parallel_size 0: must be from 1 to 4, the ranks_max of the pool"},
      {[](auto& r) { r.data_parallel_rank = 7; },
       "registration: data_parallel_rank 7: must be from 0 to 2 beside data_parallel_size 3"},
  };
  bad.connect_input();
  for (const auto& [change, cause] : cases) {
    forget_events();
    bad.do_register(change);
    EXPECT_EQ(cause_of(link_event_kind::refused, 1, 1), cause);
    EXPECT_FALSE(heard(link_event_kind::registered, 1, 1, 0ms)) << cause;
    ASSERT_EQ(send(1), send_result::queued); // the other rank serves on
    EXPECT_EQ(good.receive(), "1");
  }
  bad.do_register([](auto& r) { r.max_num_batched_tokens = 0; }); // prefill is not chunked
  EXPECT_TRUE(heard(link_event_kind::registered, 1, 1));
  const std::lock_guard guard{mutex_};
  EXPECT_EQ(records_.back().size(), 2U);
}

// 45.
TEST_F(hub_test, a_bad_registration_on_a_good_link_leaves_the_link_as_it_was) {
  start();
  auto rank = join(0);
  rank.do_register([](auto& r) { r.kv_cache_size_tokens = 0; });
  EXPECT_TRUE(heard(link_event_kind::refused, 0, 1));
  EXPECT_EQ(send(1), send_result::queued);
  EXPECT_EQ(rank.receive(), "1");
  EXPECT_FALSE(heard(link_event_kind::lost, 0, 1, 0ms));
  const std::lock_guard guard{mutex_};
  ASSERT_EQ(records_.back().size(), 1U);
  EXPECT_EQ(records_.back()[0].registration.kv_capacity, 10'000U);
}

// 46. ranks of an engine that disagree
TEST_F(hub_test, a_size_that_contradicts_registered_ranks_is_refused_by_name_and_taken_when_they_are_gone) {
  start();
  auto first = join(0);
  auto second = join(1);
  auto other = dial(2);
  other.size = 4;
  other.hello();
  other.connect();
  EXPECT_EQ(cause_of(link_event_kind::refused, 2, 1), "registration: rank 2 says data_parallel_size 4, rank 0 says 3");
  first.input.close();
  ASSERT_TRUE(heard(link_event_kind::lost, 0, 1));
  EXPECT_FALSE(heard(link_event_kind::registered, 2, 1, 50ms)) << "rank 1 is there";
  second.input.close();
  EXPECT_TRUE(heard(link_event_kind::registered, 2, 1)) << "an engine registers only once";
  EXPECT_EQ(hub->send({0, 2}, 1, {frame_kind::add, "1", {}}), send_result::queued);
  EXPECT_EQ(other.receive(), "1");
}

TEST_F(hub_test, a_contradicting_rank_that_went_away_is_not_taken_later) {
  start();
  auto first = join(0);
  {
    auto other = dial(2);
    other.size = 4;
    other.hello();
    other.connect();
    ASSERT_TRUE(heard(link_event_kind::refused, 2, 1));
  }
  std::this_thread::sleep_for(50ms); // its end is noticed
  first.input.close();
  ASSERT_TRUE(heard(link_event_kind::lost, 0, 1));
  EXPECT_FALSE(heard(link_event_kind::registered, 2, 1, 100ms));
}

TEST_F(hub_test, a_rank_that_returns_among_ranks_of_another_size_stays_lost_until_they_are_gone) {
  start();
  auto old = join(0);
  old.input.close();
  ASSERT_TRUE(heard(link_event_kind::lost, 0, 1));
  auto replacement = join(1, 1, 4);
  old.connect_input(); // the same process again, without HELLO
  EXPECT_EQ(cause_of(link_event_kind::refused, 0, 1),
            "back without HELLO: rank 0 says data_parallel_size 3, rank 1 says 4");
  EXPECT_FALSE(heard(link_event_kind::reconnected, 0, 2, 50ms));
  EXPECT_EQ(send(1), send_result::unknown_link);
  replacement.input.close();
  EXPECT_TRUE(heard(link_event_kind::reconnected, 0, 2));
}

TEST_F(hub_test, two_engines_of_one_pool_may_differ_in_size) {
  start();
  auto first = join(0);
  auto second = dial(3); // index 3, one rank
  second.hello();
  second.connect_input();
  second.do_register([](auto& r) {
    r.data_parallel_size = 1;
    r.data_parallel_rank = 0;
  });
  EXPECT_TRUE(heard(link_event_kind::registered, 3, 1));
}

TEST_F(hub_test, a_second_engine_with_a_rank_number_in_use_is_named_in_the_cause) {
  start();
  const auto cause_of_hello = [&](core::rank_epoch epoch) { return cause_of(link_event_kind::hello, 0, epoch); };
  {
    const auto first = join(0, 1);
    EXPECT_EQ(cause_of_hello(1), "HELLO from 127.0.0.1");
    const auto second = join(0, 2);
    EXPECT_THAT(cause_of_hello(2),
                testing::HasSubstr("HELLO from 127.0.0.1; its rank number was in use by epoch 1 from "
                                   "127.0.0.1, whose link was alive"));
  }
  EXPECT_TRUE(heard(link_event_kind::lost, 0, 2));
  const auto replacement = join(0, 3); // the usual restart of an engine
  EXPECT_EQ(cause_of_hello(3), "HELLO from 127.0.0.1");
}

TEST_F(hub_test, a_rank_that_was_given_up_is_back_as_a_new_epoch_when_it_is_heard) {
  start();
  auto rank = join();
  hub->give_up({0, 0}, 1, "it hangs");
  ASSERT_TRUE(heard(link_event_kind::lost, 0, 1));
  EXPECT_EQ(send(1), send_result::unknown_link);
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(heard(link_event_kind::reconnected, 0, 2, 0ms));
  rank.say(sg::make_engine_rid("r", std::nullopt, 7, 0), 1);
  ASSERT_TRUE(heard(link_event_kind::reconnected, 0, 2));
  EXPECT_EQ(send(2, 2), send_result::queued);
  EXPECT_EQ(rank.receive(), "2");
  const std::lock_guard guard{mutex_};
  EXPECT_TRUE(batches_.empty());
}

TEST_F(hub_test, only_allowed_peers_can_dial_in) {
  engine_hub_options options;
  options.allowed_peers = {"10.0.0.0/8"};
  start(options);
  auto refused = dial();
  refused.knock();
  ASSERT_TRUE(eventually([&] { return hub->counters().peers_refused > 0; }));
  EXPECT_FALSE(heard(link_event_kind::hello, 0, 1, 100ms));
  hub.reset();
  options.allowed_peers = {"127.0.0.1"};
  start(options);
  join();
}

TEST(address_block, contains_what_its_prefix_says) {
  const auto contains = [](const char* block, const char* address) {
    const auto parsed = address_block::parse(block);
    return parsed && parsed->contains(address);
  };
  EXPECT_TRUE(contains("10.1.0.0/16", "10.1.255.3"));
  EXPECT_FALSE(contains("10.1.0.0/16", "10.2.0.1"));
  EXPECT_TRUE(contains("10.1.2.3", "10.1.2.3"));
  EXPECT_FALSE(contains("10.1.2.3", "10.1.2.4"));
  EXPECT_TRUE(contains("10.0.0.0/8", "::ffff:10.9.9.9"));
  EXPECT_TRUE(contains("fd00::/8", "fd12::1"));
  EXPECT_FALSE(contains("fd00::/8", "10.0.0.1"));
  EXPECT_TRUE(contains("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(contains("0.0.0.0/0", "fd00::1"));
  for (const auto* bad : {"", "10.1", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "fd00::/129", "host"})
    EXPECT_FALSE(address_block::parse(bad)) << bad;
}

TEST_F(hub_test, after_stop_nothing_is_sent_and_nothing_crashes) {
  start();
  auto rank = join();
  std::thread sender{[&] {
    for (int i = 0; i < 20'000; ++i)
      send(i);
  }};
  std::this_thread::sleep_for(1ms);
  hub->stop();
  EXPECT_EQ(send(1), send_result::unknown_link);
  sender.join();
}

} // namespace
} // namespace rankwise::io
