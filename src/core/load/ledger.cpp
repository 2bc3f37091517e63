#include "core/load/ledger.hpp"

#include <algorithm>
#include <string_view>

namespace rankwise::core {

std::string_view to_string(report_verdict v) noexcept {
  switch (v) {
  case report_verdict::accepted:
    return "accepted";
  case report_verdict::repeated:
    return "repeated";
  case report_verdict::out_of_order:
    return "out_of_order";
  case report_verdict::old_epoch:
    return "old_epoch";
  case report_verdict::unknown_rank:
    return "unknown_rank";
  }
  return "unknown";
}

ledger::rank_state* ledger::state_of(std::uint16_t rank, rank_epoch epoch) {
  if (rank >= ranks_.size() || ranks_[rank].epoch == 0 || ranks_[rank].epoch != epoch)
    return nullptr;
  return &ranks_[rank];
}

template <class Belongs>
std::vector<request_handle> ledger::handles_where(Belongs belongs) const {
  std::vector<request_handle> result;
  for (const auto& [handle, c] : charges_)
    if (belongs(handle, c))
      result.push_back(handle);
  std::sort(result.begin(), result.end()); // the order of a hash map must not decide anything
  return result;
}

std::vector<request_handle> ledger::handles_on(std::uint16_t rank) const {
  return handles_where([=](request_handle, const charge& c) { return c.rank == rank; });
}

std::vector<request_handle> ledger::handles_of(owner_id owner) const {
  return handles_where([=](request_handle handle, const charge&) { return owner_of(handle) == owner; });
}

std::vector<leg_id> ledger::charged_legs() const {
  std::vector<leg_id> result;
  result.reserve(charges_.size());
  for (const auto& [handle, c] : charges_)
    result.push_back({handle, c.attempt});
  std::sort(result.begin(), result.end());
  return result;
}

std::uint64_t ledger::generated_on(const rank_state& s) noexcept {
  std::uint64_t sum = 0;
  for (const auto& [owner, tokens] : s.generated)
    sum += tokens;
  return sum;
}

std::vector<request_handle> ledger::close(std::uint16_t rank) {
  if (rank >= ranks_.size())
    return {};
  auto dropped = handles_on(rank);
  for (const auto handle : dropped) {
    limit_tokens_ -= charges_[handle].limit_tokens;
    charges_.erase(handle);
  }
  ranks_[rank] = rank_state{};
  return dropped;
}

std::vector<request_handle> ledger::open(std::uint16_t rank, rank_epoch epoch) {
  if (rank >= ranks_.size())
    ranks_.resize(rank + std::size_t{1});
  if (ranks_[rank].epoch == epoch)
    return {};
  auto dropped = close(rank);
  ranks_[rank].epoch = epoch;
  return dropped;
}

bool ledger::add(request_handle handle, const charge& c, timestamp now) {
  auto* s = state_of(c.rank, c.epoch);
  if (s == nullptr || !charges_.try_emplace(handle, c).second)
    return false;
  auto& added = charges_[handle];
  added.contained = false;
  s->requests += 1;
  limit_tokens_ += added.limit_tokens;
  if (added.released)
    return true;
  s->placed_tokens += added.prompt_tokens;
  s->uncontained_tokens += added.prompt_tokens;
  if (!added.prefilled) {
    if (s->prefilling == 0)
      s->prefill_since = now;
    s->prefilling += 1;
    s->prefill_tokens += added.prompt_tokens;
    s->work_tokens += added.work_tokens;
  }
  return true;
}

/// A prompt is done with; the rank begins the next one, if there is any.
void ledger::end_prefill(rank_state& s, const charge& c, timestamp now) {
  s.prefilling -= 1;
  s.prefill_tokens -= c.prompt_tokens;
  s.work_tokens -= c.work_tokens;
  s.prefill_since = now;
}

bool ledger::first_token(request_handle handle, timestamp now) {
  const auto found = charges_.find(handle);
  if (found == charges_.end())
    return false;
  auto& c = found->second;
  if (c.prefilled)
    return true;
  c.prefilled = true;
  if (auto* s = state_of(c.rank, c.epoch); s != nullptr && !c.released) {
    end_prefill(*s, c, now);
    s->prefilled_tokens += c.prompt_tokens;
    s->prefilled.push_back({handle, now});
    // Without reports nothing else takes entries out.
    if (s->prefilled.size() > 2 * std::size_t{s->requests} + 64)
      std::erase_if(s->prefilled, [this](const prefilled_charge& p) { return !charges_.contains(p.handle); });
  }
  return true;
}

// Takes the charge's tokens off its rank: off the sum of unseen charges, or off the report that still counts them.
void ledger::take_off(rank_state& s, charge& c, timestamp now) {
  s.placed_tokens -= c.prompt_tokens;
  if (!c.prefilled)
    end_prefill(s, c, now);
  if (c.contained) {
    s.gone_tokens += c.prompt_tokens;
    s.gone.push_back({c.prompt_tokens, now});
  } else {
    s.uncontained_tokens -= c.prompt_tokens;
  }
}

bool ledger::release(request_handle handle, timestamp now) {
  const auto found = charges_.find(handle);
  if (found == charges_.end() || found->second.released)
    return false;
  auto& c = found->second;
  if (auto* s = state_of(c.rank, c.epoch)) {
    if (!c.prefilled)
      s->prefilled_tokens += c.prompt_tokens;
    take_off(*s, c, now);
  }
  limit_tokens_ -= c.limit_tokens;
  c.limit_tokens = 0;
  c.released = true;
  return true;
}

std::optional<ledger::charge> ledger::end(request_handle handle, timestamp now) {
  const auto found = charges_.find(handle);
  if (found == charges_.end())
    return std::nullopt;
  auto c = found->second;
  if (auto* s = state_of(c.rank, c.epoch)) {
    if (!c.released)
      take_off(*s, c, now);
    s->requests -= 1;
    if (s->requests == 0) {
      // An emptied rank is idle at once, whatever its last report said; all that it reported is gone with its last leg.
      s->generated.clear();
      s->gone_tokens = s->report ? s->report->kv_used_tokens : 0;
      s->gone.assign(1, {s->gone_tokens, now});
      s->prefilled.clear();
    }
  }
  limit_tokens_ -= c.limit_tokens;
  charges_.erase(found);
  return c;
}

const ledger::charge* ledger::find(request_handle handle) const {
  const auto found = charges_.find(handle);
  return found == charges_.end() ? nullptr : &found->second;
}

report_verdict ledger::report(const load_report& r) {
  if (r.rank.rank >= ranks_.size() || ranks_[r.rank.rank].epoch == 0)
    return report_verdict::unknown_rank;
  auto& s = ranks_[r.rank.rank];
  if (s.epoch != r.epoch)
    return report_verdict::old_epoch;
  if (s.report) {
    if (r.sequence == s.report->sequence)
      return report_verdict::repeated;
    if (r.sequence < s.report->sequence)
      return report_verdict::out_of_order;
  }
  s.report = r;
  const auto sampled_after = r.received_at - options_.report_lag;
  while (!s.prefilled.empty() && s.prefilled.front().at <= sampled_after) {
    const auto found = charges_.find(s.prefilled.front().handle);
    // The front may have ended, or been released, since it was queued.
    if (found != charges_.end() && found->second.epoch == s.epoch && !found->second.contained &&
        !found->second.released) {
      found->second.contained = true;
      s.uncontained_tokens -= found->second.prompt_tokens;
    }
    s.prefilled.pop_front();
  }
  while (!s.gone.empty() && s.gone.front().at <= sampled_after) {
    s.gone_tokens -= s.gone.front().tokens;
    s.gone.pop_front();
  }
  return report_verdict::accepted;
}

void ledger::set_generated(std::uint16_t rank, rank_epoch epoch, owner_id owner, std::uint64_t tokens) {
  auto* s = state_of(rank, epoch);
  if (s == nullptr || s->requests == 0)
    return;
  for (auto& [known, sum] : s->generated) {
    if (known == owner) {
      sum = tokens;
      return;
    }
  }
  s->generated.emplace_back(owner, tokens);
}

void ledger::forget_owner(owner_id owner) {
  for (auto& s : ranks_)
    std::erase_if(s.generated, [=](const auto& entry) { return entry.first == owner; });
}

ledger::figures ledger::of(std::uint16_t rank, timestamp now) const {
  figures f;
  if (rank >= ranks_.size())
    return f;
  const auto& s = ranks_[rank];
  f.requests = s.requests;
  f.prefill_tokens = s.prefill_tokens;
  f.work_tokens = s.work_tokens;
  f.prefilling = s.prefilling;
  f.prefill_since = s.prefill_since;
  f.generated_tokens = generated_on(s);
  f.prefilled_tokens = s.prefilled_tokens;
  f.placed_tokens = s.placed_tokens;
  if (s.report) {
    f.report_age = now - s.report->received_at;
    f.stale = *f.report_age > options_.report_stale_after;
    if (!f.stale) {
      f.reported_running = s.report->num_running;
      f.reported_waiting = s.report->num_waiting;
    }
  } else {
    f.stale = true;
  }
  if (s.requests == 0)
    return f; // idle, whatever was reported
  if (f.stale) {
    f.tokens = s.placed_tokens + f.generated_tokens;
  } else {
    const auto reported = s.report->kv_used_tokens;
    f.tokens = (reported > s.gone_tokens ? reported - s.gone_tokens : 0) + s.uncontained_tokens;
  }
  return f;
}

const std::optional<load_report>& ledger::newest_report(std::uint16_t rank) const {
  static const std::optional<load_report> none;
  return rank < ranks_.size() ? ranks_[rank].report : none;
}

} // namespace rankwise::core
