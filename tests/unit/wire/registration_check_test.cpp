#include "wire/sglang/registration_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace rankwise::wire::sglang {
namespace {

using testing::IsEmpty;

/// What is wrong with a good registration of rank 1 of 3, in a pool of at most 8, after `change`.
std::string fault_after(const std::function<void(registration&)>& change) {
  registration r;
  r.max_model_len = 131'072;
  r.kv_cache_size_tokens = 1 << 20;
  r.max_num_seqs = 256;
  r.max_num_batched_tokens = 8192;
  r.data_parallel_size = 3;
  r.data_parallel_rank = 1;
  change(r);
  return fault_of(r, 1, 8);
}

TEST(registration_check, a_good_registration_has_no_fault) {
  EXPECT_THAT(fault_after([](registration&) {}), IsEmpty());
}

TEST(registration_check, a_rank_that_can_hold_run_or_take_nothing_is_refused_with_the_field_and_its_range) {
  EXPECT_EQ(fault_after([](registration& r) { r.kv_cache_size_tokens = 0; }),
            "kv_cache_size_tokens 0: must be from 1 to 1099511627776");
  EXPECT_EQ(fault_after([](registration& r) { r.max_num_seqs = 0; }), "max_num_seqs 0: must be from 1 to 2147483647");
  EXPECT_EQ(fault_after([](registration& r) { r.max_model_len = 0; }),
            "max_model_len 0: must be from 1 to 1099511627776");
}

TEST(registration_check, a_number_of_tokens_beyond_reason_is_refused) {
  constexpr auto most = registered_tokens_max;
  EXPECT_THAT(
      fault_after([](registration& r) { r.kv_cache_size_tokens = r.max_model_len = r.max_num_batched_tokens = most; }),
      IsEmpty());
  EXPECT_EQ(fault_after([](registration& r) { r.kv_cache_size_tokens = most + 1; }),
            "kv_cache_size_tokens 1099511627777: must be from 1 to 1099511627776");
  EXPECT_EQ(fault_after([](registration& r) { r.max_model_len = ~0ULL; }),
            "max_model_len 18446744073709551615: must be from 1 to 1099511627776");
  EXPECT_EQ(fault_after([](registration& r) { r.max_num_batched_tokens = most + 1; }),
            "max_num_batched_tokens 1099511627777: must be from 0 to 1099511627776");
  EXPECT_EQ(fault_after([](registration& r) { r.max_num_seqs = 0x8000'0000; }),
            "max_num_seqs 2147483648: must be from 1 to 2147483647");
}

TEST(registration_check, an_engine_without_chunked_prefill_says_so_by_a_chunk_of_0_and_is_taken) {
  EXPECT_THAT(fault_after([](registration& r) { r.max_num_batched_tokens = 0; }), IsEmpty());
}

TEST(registration_check, a_size_of_the_engine_that_the_pool_cannot_have_is_refused) {
  EXPECT_EQ(fault_after([](registration& r) { r.data_parallel_size = 0; }),
            "data_parallel_size 0: must be from 1 to 8, the ranks_max of the pool");
  EXPECT_EQ(fault_after([](registration& r) { r.data_parallel_size = 9; }),
            "data_parallel_size 9: must be from 1 to 8, the ranks_max of the pool");
  EXPECT_THAT(fault_after([](registration& r) { r.data_parallel_size = 8; }), IsEmpty());
  EXPECT_EQ(fault_after([](registration& r) {
              r.data_parallel_size = 8;
              r.data_parallel_rank = 0;
            }),
            "data_parallel_size 8: its engine would have the ranks 1 to 8, and the ranks_max of the pool is 8");
}

TEST(registration_check, a_rank_number_that_does_not_fit_its_identity_or_its_engine_is_refused) {
  EXPECT_EQ(fault_after([](registration& r) {
              r.data_parallel_rank = 7;
              r.data_parallel_size = 8;
            }),
            "data_parallel_rank 7: must be from 0 to 1 under the identity 1");
  EXPECT_EQ(fault_after([](registration& r) { r.data_parallel_rank = 7; }),
            "data_parallel_rank 7: must be from 0 to 2 beside data_parallel_size 3");
  EXPECT_EQ(fault_after([](registration& r) {
              r.data_parallel_rank = 1;
              r.data_parallel_size = 1;
            }),
            "data_parallel_rank 1: must be from 0 to 0 beside data_parallel_size 1");
}

// Identity = index of the engine + data_parallel_rank: a second engine begins its own ranks at 0.
TEST(registration_check, a_second_engine_of_a_pool_counts_its_own_ranks) {
  EXPECT_THAT(fault_after([](registration& r) {
                r.data_parallel_rank = 0;
                r.data_parallel_size = 1;
              }),
              IsEmpty());
}

TEST(registration_check, ranks_of_one_engine_that_disagree_on_its_size_are_named) {
  EXPECT_EQ(contradiction({2, 2, 5}, {0, 0, 3}), "rank 2 says data_parallel_size 5, rank 0 says 3");
  EXPECT_EQ(contradiction({0, 0, 3}, {4, 4, 5}), "rank 0 says data_parallel_size 3, rank 4 says 5");
  EXPECT_THAT(contradiction({2, 2, 3}, {0, 0, 3}), IsEmpty());
}

TEST(registration_check, engines_that_share_no_rank_number_do_not_contradict_each_other) {
  EXPECT_THAT(contradiction({3, 0, 1}, {0, 0, 3}), IsEmpty());
  EXPECT_THAT(contradiction({0, 0, 3}, {3, 0, 5}), IsEmpty());
  EXPECT_EQ(contradiction({2, 0, 2}, {0, 0, 3}),
            "rank 2 says data_parallel_rank 0 of data_parallel_size 2, so that its engine has the ranks 2 to 3; rank 0 "
            "says data_parallel_rank 0 of data_parallel_size 3, so that its engine has the ranks 0 to 2");
}

} // namespace
} // namespace rankwise::wire::sglang
