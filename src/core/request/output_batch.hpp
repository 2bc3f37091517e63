#pragma once

#include "core/base/ids.hpp"
#include "core/base/time.hpp"
#include "core/request/stream_sink.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace rankwise::core {

/// One request's share of an engine batch, after the wire codec: rids are resolved to handles by the receiver.
struct output_item {
  request_handle handle = 0;
  std::uint32_t attempt = 0;
  std::uint32_t token_offset = 0; ///< into output_batch::tokens
  std::uint32_t token_count = 0;
  finish_reason finish = finish_reason::none;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0; ///< cumulative, as the engine counts
  std::uint32_t cached_tokens = 0;
  std::int32_t finish_status = 0; ///< HTTP status of an abort; 0 = none
  std::int64_t matched_token = -1;
  std::uint32_t finish_text = stream_event::no_index;    ///< into output_batch::texts
  std::uint32_t matched_string = stream_event::no_index; ///< into output_batch::texts
};

/// What one frame of one rank said to one owner, however many of its requests it speaks of.
struct output_batch {
  rank_id rank;
  rank_epoch epoch = 0;
  owner_id owner = 0;       ///< of all items
  std::uint64_t number = 0; ///< counts the frames of the rank from 1; batches that were split have the same number
  timestamp received_at{};
  std::vector<output_item> items;
  std::vector<std::int32_t> tokens;
  std::vector<std::string> texts;
};

/// Splits what a frame said by the owners of its items. A frame of one owner, as nearly all are where a node has one
/// RequestManager, is handed on as it is. `to` is called once for each owner, in the order in which they first appear.
template <class To>
void split_by_owner(output_batch&& batch, To&& to) {
  const auto first = batch.items.empty() ? owner_id{0} : owner_of(batch.items.front().handle);
  std::vector<output_batch> others; // by owner
  std::size_t kept = 0;
  for (auto& item : batch.items) {
    const auto owner = owner_of(item.handle);
    if (owner == first) {
      batch.items[kept++] = item;
      continue;
    }
    auto found = others.begin();
    while (found != others.end() && found->owner != owner)
      ++found;
    if (found == others.end()) {
      auto& fresh = others.emplace_back();
      fresh.rank = batch.rank;
      fresh.epoch = batch.epoch;
      fresh.owner = owner;
      fresh.number = batch.number;
      fresh.received_at = batch.received_at;
      found = others.end() - 1;
    }
    auto& target = *found;
    const auto move_text = [&](std::uint32_t& index) {
      if (index >= batch.texts.size())
        return;
      target.texts.push_back(std::move(batch.texts[index]));
      index = static_cast<std::uint32_t>(target.texts.size() - 1);
    };
    const auto begin = batch.tokens.begin() + item.token_offset;
    item.token_offset = static_cast<std::uint32_t>(target.tokens.size());
    target.tokens.insert(target.tokens.end(), begin, begin + item.token_count);
    move_text(item.finish_text);
    move_text(item.matched_string);
    target.items.push_back(item);
  }
  batch.items.resize(kept);
  batch.owner = first;
  to(std::move(batch));
  for (auto& other : others)
    to(std::move(other));
}

} // namespace rankwise::core
