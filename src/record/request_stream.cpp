#include "record/request_stream.hpp"

#include <algorithm>
#include <exception>

namespace rankwise::record {

request_stream::taken request_stream::take(std::optional<std::uint64_t> after, core::timestamp now) {
  const std::lock_guard lock{mutex_};
  wanted_until_ = now + wanted_for;
  wanted_.store(true, std::memory_order_relaxed);
  end_what_came_not_again(now);
  taken result;
  result.last = last_;
  if (!after)
    return result;
  auto from = std::upper_bound(ended_.begin(), ended_.end(), *after,
                               [](std::uint64_t number, const auto& r) { return number < r->number; });
  const auto count = std::min(static_cast<std::size_t>(ended_.end() - from), answer_max);
  result.requests.assign(from, from + static_cast<std::ptrdiff_t>(count));
  result.more = from + static_cast<std::ptrdiff_t>(count) != ended_.end();
  if (result.more)
    result.last = result.requests.back()->number;
  result.lost = (result.last > *after ? result.last - *after : 0) - count;
  return result;
}

void request_stream::forget_oldest() {
  blocks_ -= ended_.front()->blocks.size();
  ended_.pop_front();
}

void request_stream::make_room_for_blocks(std::size_t count) {
  if (open_blocks_ + count > blocks_max) // those that ended cannot make it
    return;
  while (blocks_ + count > blocks_max && !ended_.empty())
    forget_oldest();
}

void request_stream::arrived(const core::leg_request& leg) {
  const std::lock_guard lock{mutex_};
  const auto& w = leg.wanted;
  if (w.now > wanted_until_) { // nobody took any of it for long
    wanted_.store(false, std::memory_order_relaxed);
    open_.clear();
    without_output_.clear();
    ended_.clear();
    blocks_ = open_blocks_ = 0;
    return;
  }
  end_what_came_not_again(w.now);
  if (const auto found = open_.find(w.handle); found != open_.end()) {
    found->second.ended_at.reset(); // it waited, or moves from a rank that was lost
    return;
  }
  if (leg.attempt > 0)
    return; // it came before anybody recorded
  auto request = std::make_shared<recorded_request>();
  auto& r = *request;
  r.arrival = leg.received_at == core::timestamp{} ? w.now : leg.received_at;
  r.input_tokens = w.prompt_tokens;
  r.max_new_tokens = w.max_new_tokens;
  r.priority = w.priority;
  if (w.first_token_by)
    r.first_token_within_s = std::max(core::to_seconds(*w.first_token_by - r.arrival), 0.0);
  const auto told = w.blocks.first(std::min(w.blocks.size(), request_blocks_max));
  make_room_for_blocks(told.size());
  if (blocks_ + told.size() <= blocks_max)
    r.blocks.assign(told.begin(), told.end());
  if (open_.size() >= requests_max) { // not all ways to end come by here
    const auto oldest = open_.begin();
    blocks_ -= oldest->second.request->blocks.size();
    open_blocks_ -= oldest->second.request->blocks.size();
    open_.erase(oldest);
    ++last_; // it counts as lost
  }
  blocks_ += r.blocks.size();
  open_blocks_ += r.blocks.size();
  open_.emplace(w.handle, open_request{std::move(request), std::nullopt, false});
}

void request_stream::end(open_requests::iterator entry) {
  entry->second.request->number = ++last_;
  ended_.push_back(entry->second.request);
  open_blocks_ -= entry->second.request->blocks.size();
  open_.erase(entry);
  if (ended_.size() > requests_max)
    forget_oldest();
}

void request_stream::end_what_came_not_again(core::timestamp now) {
  while (!without_output_.empty() && without_output_.front().first + again_within <= now) {
    const auto [at, handle] = without_output_.front();
    without_output_.pop_front();
    const auto found = open_.find(handle);
    if (found != open_.end() && found->second.ended_at == at)
      end(found);
  }
}

void request_stream::ended(core::request_handle handle, std::optional<std::uint32_t> output_tokens,
                           core::timestamp now) {
  const std::lock_guard lock{mutex_};
  end_what_came_not_again(now);
  const auto found = open_.find(handle);
  if (found == open_.end())
    return;
  if (output_tokens && *output_tokens > 0) {
    found->second.request->output_tokens = output_tokens;
    end(found);
  } else {
    found->second.decodes = false;
    end_without_output(found, now);
  }
}

void request_stream::end_without_output(open_requests::iterator entry, core::timestamp now) {
  if (entry->second.ended_at)
    return;
  without_output_.emplace_back(now, entry->first);
  entry->second.ended_at = now;
}

void request_stream::decodes(core::request_handle handle) {
  const std::lock_guard lock{mutex_};
  const auto found = open_.find(handle);
  if (found == open_.end())
    return;
  found->second.decodes = true;
  found->second.ended_at.reset(); // the end of its leg before it moved may be told behind its new arrival
}

void request_stream::prefill_left(core::request_handle handle, core::timestamp now) {
  const std::lock_guard lock{mutex_};
  if (const auto found = open_.find(handle); found != open_.end() && !found->second.decodes)
    end_without_output(found, now);
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

void stream_recorder::progress(const core::batch_progress& p, core::timestamp now) noexcept {
  if (!stream_.wanted() || role_ == core::pool_role::prefill) // its legs end when their prompts are computed
    return;
  quietly([&] {
    for (std::size_t i = 0; i < p.ended.size(); ++i)
      stream_.ended(p.ended[i], i < p.ended_tokens.size() ? std::optional{p.ended_tokens[i]} : std::nullopt, now);
  });
}

void stream_recorder::ended(core::request_handle handle, core::timestamp now, std::uint32_t generated) noexcept {
  if (role_ == core::pool_role::prefill)
    left(handle, now);
  else if (stream_.wanted())
    quietly([&] { stream_.ended(handle, generated, now); });
}

void stream_recorder::waits(const core::leg_request& leg) noexcept {
  if (stream_.wanted() && role_ != core::pool_role::decode)
    quietly([&] { stream_.arrived(leg); });
}

void stream_recorder::left(core::request_handle handle, core::timestamp now) noexcept {
  if (!stream_.wanted())
    return;
  quietly([&] {
    if (role_ == core::pool_role::prefill)
      stream_.prefill_left(handle, now);
    else
      stream_.ended(handle, std::nullopt, now);
  });
}

void stream_recorder::decided(const core::leg_request& leg, const core::placement_decision& d) noexcept {
  if (!stream_.wanted())
    return;
  const bool refused = d.what == core::placement_decision::kind::refused;
  quietly([&] {
    if (role_ != core::pool_role::decode)
      stream_.arrived(leg);
    else if (d.what == core::placement_decision::kind::placed)
      stream_.decodes(leg.wanted.handle);
    if (refused && d.reason != core::failure::duplicate_rid) // a duplicate is charged, and goes on
      stream_.ended(leg.wanted.handle, std::nullopt, leg.wanted.now);
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
