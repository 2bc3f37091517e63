#include "record/request_stream.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace rankwise::record {

request_stream::taken request_stream::take(std::uint64_t after, core::timestamp now) {
  const std::lock_guard lock{mutex_};
  wanted_until_ = now + wanted_for;
  wanted_.store(true, std::memory_order_relaxed);
  taken result;
  result.last = last_;
  result.block_tokens = block_tokens_;
  for (const auto& r : ended_)
    if (r.number > after)
      result.requests.push_back(r);
  const auto newer = last_ > after ? last_ - after : 0;
  result.lost = newer - result.requests.size();
  return result;
}

void request_stream::forget_oldest() {
  blocks_ -= ended_.front().blocks.size();
  ended_.pop_front();
}

void request_stream::arrived(const core::leg_request& leg) {
  const std::lock_guard lock{mutex_};
  const auto& w = leg.wanted;
  if (w.now > wanted_until_) { // nobody took any of it for long
    wanted_.store(false, std::memory_order_relaxed);
    open_.clear();
    ended_.clear();
    blocks_ = 0;
    return;
  }
  if (leg.attempt > 0)
    return;                           // it moves from a rank that was lost
  if (open_.size() >= requests_max) { // not all ways to end come by here
    for (const auto& [handle, request] : open_)
      blocks_ -= request.blocks.size();
    last_ += open_.size(); // they count as lost
    open_.clear();
  }
  const auto [entry, fresh] = open_.try_emplace(w.handle);
  if (!fresh)
    return; // it asked before, and waited
  auto& r = entry->second;
  r.arrival = w.now;
  r.input_tokens = w.prompt_tokens;
  r.max_new_tokens = w.max_new_tokens;
  r.priority = w.priority;
  if (w.first_token_by)
    r.first_token_within_s = std::max(core::to_seconds(*w.first_token_by - w.now), 0.0);
  if (w.block_tokens > 0)
    block_tokens_ = w.block_tokens;
  while (blocks_ + w.blocks.size() > blocks_max && !ended_.empty())
    forget_oldest();
  if (blocks_ + w.blocks.size() <= blocks_max)
    r.blocks.assign(w.blocks.begin(), w.blocks.end());
  blocks_ += r.blocks.size();
}

void request_stream::ended(core::request_handle handle, std::optional<std::uint32_t> output_tokens) {
  const std::lock_guard lock{mutex_};
  const auto found = open_.find(handle);
  if (found == open_.end())
    return;
  auto& r = ended_.emplace_back(std::move(found->second));
  open_.erase(found);
  r.number = ++last_;
  if (output_tokens && *output_tokens > 0)
    r.output_tokens = output_tokens;
  if (ended_.size() > requests_max)
    forget_oldest();
}

namespace {

/// What fails for want of memory is a request less in the stream, nothing else.
template <class F>
void quietly(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception&) {
  }
}

} // namespace

void stream_recorder::progress(const core::batch_progress& p, core::timestamp) noexcept {
  if (!stream_.wanted() || role_ == core::pool_role::prefill) // its legs end when their prompts are computed
    return;
  quietly([&] {
    for (std::size_t i = 0; i < p.ended.size(); ++i)
      stream_.ended(p.ended[i], i < p.ended_tokens.size() ? std::optional{p.ended_tokens[i]} : std::nullopt);
  });
}

void stream_recorder::ended(core::request_handle handle, core::timestamp, std::uint32_t generated) noexcept {
  if (stream_.wanted() && role_ != core::pool_role::prefill)
    quietly([&] { stream_.ended(handle, generated); });
}

void stream_recorder::waits(const core::leg_request& leg) noexcept {
  if (stream_.wanted() && role_ != core::pool_role::decode)
    quietly([&] { stream_.arrived(leg); });
}

void stream_recorder::decided(const core::leg_request& leg, const core::placement_decision& d) noexcept {
  if (stream_.wanted() && role_ != core::pool_role::decode)
    quietly([&] {
      stream_.arrived(leg);
      if (d.what == core::placement_decision::kind::refused)
        stream_.ended(leg.wanted.handle, std::nullopt);
    });
}

nlohmann::json request_file_head(std::uint32_t block_tokens) {
  return {{"rankwise_requests", request_file_version}, {"block_tokens", block_tokens}};
}

nlohmann::json request_line(const recorded_request& r, core::timestamp origin) {
  nlohmann::json j{{"arrival_s", core::to_seconds(r.arrival - origin)},
                   {"input_tokens", r.input_tokens},
                   {"output_tokens", r.output_tokens ? nlohmann::json(*r.output_tokens) : nlohmann::json(nullptr)},
                   {"max_new_tokens", r.max_new_tokens}};
  if (r.priority != 0)
    j["priority"] = r.priority;
  if (r.first_token_within_s)
    j["first_token_within_s"] = *r.first_token_within_s;
  if (!r.blocks.empty())
    j["blocks"] = r.blocks;
  return j;
}

} // namespace rankwise::record
