#include "core/request/output_batch.hpp"

#include <gmock/gmock.h>

namespace rankwise::core {
namespace {

output_item item_of(owner_id owner, std::uint32_t slot, std::uint32_t offset, std::uint32_t count) {
  output_item item;
  item.handle = make_handle(owner, 1, slot);
  item.token_offset = offset;
  item.token_count = count;
  return item;
}

std::vector<output_batch> split(output_batch batch) {
  std::vector<output_batch> parts;
  split_by_owner(std::move(batch), [&](output_batch part) { parts.push_back(std::move(part)); });
  return parts;
}

TEST(output_batch, of_one_owner_is_handed_on_as_it_is) {
  output_batch batch;
  batch.items = {item_of(3, 1, 0, 2), item_of(3, 2, 2, 1)};
  batch.tokens = {10, 11, 12};
  const auto* const tokens = batch.tokens.data();
  const auto parts = split(std::move(batch));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].owner, 3);
  EXPECT_EQ(parts[0].items.size(), 2u);
  EXPECT_EQ(parts[0].tokens.data(), tokens) << "not copied";
}

TEST(output_batch, of_several_owners_is_split_and_every_item_keeps_its_tokens_and_texts) {
  output_batch batch;
  batch.rank = {1, 2};
  batch.epoch = 3;
  batch.number = 4;
  batch.received_at = timestamp{} + std::chrono::seconds{5};
  batch.items = {item_of(1, 1, 0, 1), item_of(2, 1, 1, 2), item_of(1, 2, 3, 1), item_of(7, 1, 4, 0),
                 item_of(2, 2, 4, 1)};
  batch.items[1].finish_text = 0;
  batch.items[2].finish_text = 1;
  batch.items[4].matched_string = 2;
  batch.tokens = {10, 20, 21, 11, 22};
  batch.texts = {"second's", "first's", "stop"};
  const auto parts = split(std::move(batch));
  ASSERT_EQ(parts.size(), 3u);
  const auto tokens_of = [&](std::size_t part, std::size_t item) {
    const auto& i = parts[part].items[item];
    const auto begin = parts[part].tokens.begin() + i.token_offset;
    return std::vector<std::int32_t>(begin, begin + i.token_count);
  };
  for (const auto& part : parts) {
    EXPECT_EQ(part.rank, (rank_id{1, 2}));
    EXPECT_EQ(part.epoch, 3u);
    EXPECT_EQ(part.number, 4u);
    EXPECT_EQ(part.received_at, timestamp{} + std::chrono::seconds{5});
    for (const auto& item : part.items)
      EXPECT_EQ(owner_of(item.handle), part.owner);
  }
  EXPECT_EQ(parts[0].owner, 1);
  EXPECT_THAT(tokens_of(0, 0), testing::ElementsAre(10));
  EXPECT_THAT(tokens_of(0, 1), testing::ElementsAre(11));
  EXPECT_EQ(parts[0].texts.at(parts[0].items[1].finish_text), "first's");
  EXPECT_EQ(parts[1].owner, 2);
  EXPECT_THAT(tokens_of(1, 0), testing::ElementsAre(20, 21));
  EXPECT_THAT(tokens_of(1, 1), testing::ElementsAre(22));
  EXPECT_EQ(parts[1].texts.at(parts[1].items[0].finish_text), "second's");
  EXPECT_EQ(parts[1].texts.at(parts[1].items[1].matched_string), "stop");
  EXPECT_EQ(parts[2].owner, 7);
  EXPECT_EQ(parts[2].items.size(), 1u);
}

} // namespace
} // namespace rankwise::core
