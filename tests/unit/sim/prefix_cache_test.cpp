#include "core/placement/block_hashes.hpp"
#include "sim/prefix_cache.hpp"

#include <gtest/gtest.h>

namespace rankwise::sim {
namespace {

using chain = std::vector<std::uint64_t>;

TEST(prefix_cache_test, block_hashes_are_chained_and_leave_the_rest_out) {
  const std::vector<std::int32_t> a{1, 2, 3, 4, 5};
  const std::vector<std::int32_t> b{9, 9, 3, 4};
  EXPECT_EQ(core::hash_blocks(a, 2).size(), 2U);
  EXPECT_NE(core::hash_blocks(a, 2)[1], core::hash_blocks(b, 2)[1]); // the same block after another beginning
  EXPECT_EQ(core::hash_blocks(a, 2), core::hash_blocks(std::vector<std::int32_t>{1, 2, 3, 4, 7}, 2));
  EXPECT_TRUE(core::hash_blocks(a, 0).empty());
  EXPECT_TRUE(core::hash_blocks({}, 2).empty());
}

TEST(prefix_cache_test, only_leading_blocks_match) {
  prefix_cache cache;
  EXPECT_EQ(cache.insert(chain{1, 2, 3}, 0), 3U);
  EXPECT_EQ(cache.match(chain{1, 2, 9}), 2U);
  EXPECT_EQ(cache.match(chain{2, 3}), 2U);
  EXPECT_EQ(cache.match(chain{9, 1}), 0U);
}

TEST(prefix_cache_test, blocks_in_use_are_shared_and_never_evicted) {
  prefix_cache cache;
  const chain prompt{1, 2, 3};
  cache.insert(prompt, 0);
  cache.acquire(prompt, 2);
  cache.release(prompt, 3);
  EXPECT_EQ(cache.referenced(), 2U);
  EXPECT_EQ(cache.evictable(), 1U);
  EXPECT_EQ(cache.evict(10), 1U);
  EXPECT_EQ(cache.match(prompt), 2U);
  EXPECT_EQ(cache.insert(prompt, 0), 1U); // two were there
}

TEST(prefix_cache_test, the_oldest_leaves_first_and_the_end_of_a_prompt_before_its_beginning) {
  prefix_cache cache;
  const chain old{1, 2};
  const chain young{5, 6};
  for (const auto& prompt : {old, young}) {
    cache.insert(prompt, 0);
    cache.release(prompt, 2);
  }
  cache.evict(1);
  EXPECT_EQ(cache.match(old), 1U);
  EXPECT_EQ(cache.match(young), 2U);
  cache.evict(2);
  EXPECT_EQ(cache.match(old), 0U);
  EXPECT_EQ(cache.match(young), 1U);
  EXPECT_EQ(cache.evictable_among(young, 1), 1U);
}

} // namespace
} // namespace rankwise::sim
