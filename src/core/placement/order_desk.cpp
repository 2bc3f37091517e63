#include "core/placement/order_desk.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace rankwise::core {

order_desk::order_desk(order_desk_options options)
    : options_(std::move(options)), pool_(options_.pool, nullptr, options_.recorders),
      waiting_(options_.pool.waiting_requests_max, options_.pool.waiting_time_max, options_.pool.waiting_order),
      told_idle_(options_.pool.ranks_max, false), // a suspect rank may wait to hear it since before a restart
      settling_(options_.ranks_expected > 0 || options_.owners_expected > 0) {}

// -- orders ----------------------------------------------------------------------------------------------------------

void order_desk::take(pool_orders orders, timestamp now, desk_effects& fx) {
  if (settling_)
    orders_kept_.push_back(std::move(orders));
  else
    carry_out(std::move(orders), now, fx);
}

void order_desk::carry_out(pool_orders orders, timestamp now, desk_effects& fx) {
  for (const auto handle : orders.releases) {
    pool_.release(handle, now);
    unrestored_.release(handle);
  }
  for (const auto& end : orders.ends) {
    if (waiting_.leave(end.handle))
      pool_.left(end.handle, now);
    else if (!unrestored_.end(end.handle))
      pool_.end(end, now);
  }
  for (auto& order : orders.places)
    place_or_wait(std::move(order), now, fx);
  admit_waiting(now, fx);
}

// Select and charge, and tell the owner: without anything that can fail in between, so that a crash leaves either
// nothing or a leg that its owner knows of. False: it would better wait, and may.
bool order_desk::place(const place_order& order, bool may_wait, timestamp now, desk_effects& fx) {
  const auto begin = options_.decision_clock ? options_.decision_clock() : timestamp{};
  auto result = pool_.place(order, now, may_wait);
  if (options_.decision_clock && options_.on_decision)
    options_.on_decision(options_.decision_clock() - begin);
  if (std::holds_alternative<wait_for_rank>(result))
    return false;
  if (auto* refused = std::get_if<refusal>(&result))
    fx.refused.push_back(std::move(*refused));
  else
    fx.placed.push_back(std::move(std::get<placement>(result)));
  return true;
}

// The decode leg of a pair does not: its prefill leg, which has a rank, would stand idle meanwhile.
bool order_desk::may_wait_for_rank(const place_order& order) const noexcept {
  return !order.of_pair || options_.pool.role != pool_role::decode;
}

// An order of which the pool is too full, or which no rank would begin soon, waits with those who do already, when
// there is room for that.
void order_desk::place_or_wait(place_order order, timestamp now, desk_effects& fx) {
  if (waiting_.contains(order.handle))
    return; // ordered twice: the one that waits is answered
  const auto charged = pool_.charged_attempt(order.handle);
  if (charged && *charged >= order.attempt) {
    place(order, false, now, fx); // the pool says what is wrong with it
    return;
  }
  if (charged) // its owner lost that attempt before this pool heard of it
    pool_.end(order.handle, now);
  const bool alone = waiting_.size() == 0 && pool_.has_room(order);
  if (alone && place(order, may_wait_for_rank(order), now, fx))
    return;
  const auto key = pool_.waiting_order(order, now);
  if (!pool_.has_room(order))
    if (const auto lower = waiting_.make_room_for(key.priority, now))
      fx.refused.push_back(pool_.displaced(*lower, now));
  if (!waiting_.enter(order, now, key, pool_.ranks_up()))
    find_place_for_newcomer(std::move(order), key, now, fx);
}

// All places to wait are taken.
void order_desk::find_place_for_newcomer(place_order order, const waiting_key& key, timestamp now, desk_effects& fx) {
  const bool had_its_turn = order.attempt > 0; // and lost its rank
  if (had_its_turn || waiting_.size() == 0 || !pool_.has_room(order)) {
    place(order, false, now, fx);
    return;
  }
  // There is room in the pool, but nobody passes those who wait: the next of all, the newcomer among them, is given a
  // rank as things are.
  const auto newcomer = order;
  waiting_.squeeze_in(order, now, key, pool_.ranks_up());
  if (pool_.has_room(*waiting_.next(now))) {
    const auto first = waiting_.take(now);
    place(first, false, now, fx);
  } else if (const auto lower = waiting_.make_room_for(key.priority, now)) {
    fx.refused.push_back(pool_.displaced(*lower, now));
  } else {
    waiting_.leave(newcomer.handle);
    fx.refused.push_back(pool_.crowded_out(newcomer, now));
  }
}

// After anything that may have made room.
void order_desk::admit_waiting(timestamp now, desk_effects& fx) {
  while (auto* next = waiting_.next(now)) {
    const auto handle = next->handle;
    if (!pool_.has_room(*next) || !place(*next, may_wait_for_rank(*next), now, fx))
      return;
    waiting_.leave(handle);
  }
}

// -- what engines say ------------------------------------------------------------------------------------------------

void order_desk::take(const batch_progress& p, timestamp now, desk_effects& fx) {
  if (settling_)
    progress_kept_.push_back(p);
  else
    progress(p, now, fx);
}

void order_desk::progress(const batch_progress& p, timestamp now, desk_effects& fx) {
  for (const auto handle : p.first_tokens)
    unrestored_.first_token(handle);
  for (const auto handle : p.ended)
    unrestored_.end(handle);
  if (pool_.progress(p, now))
    fx.ejections.push_back({p.rank.rank, p.epoch, false, false});
  admit_waiting(now, fx);
}

void order_desk::take(const std::vector<load_report>& reports, timestamp now, desk_effects& fx) {
  for (const auto& report : reports)
    pool_.report(report);
  if (!settling_)
    admit_waiting(now, fx);
}

// -- ranks -----------------------------------------------------------------------------------------------------------

void order_desk::rank_up(const rank_announcement& rank, timestamp now, desk_effects& fx) {
  if (rank.rank.pool != options_.pool.index || rank.rank.rank >= options_.pool.ranks_max)
    return;
  for (const auto handle : pool_.rank_up(rank, now))
    pool_.left(handle, now);
  restore_legs(unrestored_.take(rank.rank, rank.epoch), now);
  if (settling_) {
    settle_when_all_are_here(now, fx);
  } else {
    admit_waiting(now, fx);
  }
}

void order_desk::rank_not_up(rank_id rank, rank_epoch epoch, rank_state state, timestamp now, desk_effects& fx) {
  if (rank.rank >= options_.pool.ranks_max)
    return;
  if (state == rank_state::suspect || state == rank_state::draining) {
    pool_.rank_paused(rank, epoch, state);
    return;
  }
  // A parked rank has no actor that could name its epoch.
  const auto of = state == rank_state::parked ? pool_.epoch_of(rank.rank) : epoch;
  for (const auto handle : pool_.rank_down(rank, of, state))
    pool_.left(handle, now);
  for (const auto& leg : unrestored_.take(rank, epoch))
    pool_.left(leg.handle, now);
  if (!settling_)
    admit_waiting(now, fx);
}

void order_desk::rank_actor_lost(rank_id rank) {
  if (rank.rank < options_.pool.ranks_max)
    pool_.rank_paused(rank, pool_.epoch_of(rank.rank), rank_state::suspect);
}

rank_work order_desk::work_of(std::uint16_t rank, timestamp now) const {
  const auto f = pool_.figures(rank, now);
  return {rank, f.requests, f.prefill_tokens, f.prefilled_tokens, pool_.state_of(rank) == rank_state::draining};
}

std::vector<rank_work> order_desk::work_to_tell(timestamp now) {
  std::vector<rank_work> result;
  for (std::uint16_t rank = 0; rank < told_idle_.size(); ++rank) {
    const auto work = work_of(rank, now);
    const bool idle = work.requests == 0;
    if (!idle || !told_idle_[rank] || work.draining)
      result.push_back(work);
    told_idle_[rank] = idle;
  }
  return result;
}

// -- owners, and restarts --------------------------------------------------------------------------------------------

void order_desk::owner_opened(std::size_t index, owner_id owner, timestamp now, desk_effects& fx) {
  const auto [known, fresh] = owners_.try_emplace(index, owner);
  if (!fresh && known->second != owner)
    owner_gone(std::exchange(known->second, owner), now);
  if (settling_)
    settle_when_all_are_here(now, fx);
  else
    admit_waiting(now, fx);
}

void order_desk::owner_gone(owner_id owner, timestamp now) {
  for (const auto handle : waiting_.leave_all_of(owner))
    pool_.left(handle, now);
  std::erase_if(orders_kept_, [=](const pool_orders& o) { return o.owner == owner; });
  for (auto& kept : legs_kept_)
    if (kept.owner == owner)
      kept.legs.clear();
  unrestored_.owner_gone(owner);
  pool_.owner_gone(owner, now);
}

void order_desk::restore(owner_legs legs, timestamp now, desk_effects& fx) {
  legs_kept_.push_back(std::move(legs));
  if (settling_) {
    settle_when_all_are_here(now, fx);
    return;
  }
  settling_ = true; // nothing to wait for
  settle(now, fx);
}

void order_desk::restore_legs(const std::vector<leg_record>& legs, timestamp now) {
  if (legs.empty())
    return;
  const auto homeless = pool_.restore(legs, now); // in the order of `legs`
  auto next = homeless.begin();
  for (const auto& leg : legs) {
    if (next == homeless.end() || *next != leg.handle)
      continue;
    ++next;
    if (leg.rank.rank < options_.pool.ranks_max && pool_.epoch_of(leg.rank.rank) < leg.epoch)
      unrestored_.keep(leg);
    else
      pool_.left(leg.handle, now); // that incarnation of its rank is gone, its owner hears of it
  }
}

void order_desk::settle_when_all_are_here(timestamp now, desk_effects& fx) {
  std::size_t ranks_here = 0;
  for (std::uint16_t rank = 0; rank < options_.pool.ranks_max; ++rank)
    ranks_here += pool_.epoch_of(rank) != 0 ? 1 : 0;
  if (ranks_here >= options_.ranks_expected && legs_kept_.size() >= options_.owners_expected)
    settle(now, fx);
}

void order_desk::settle(timestamp now, desk_effects& fx) {
  if (!std::exchange(settling_, false))
    return;
  for (const auto& kept : std::exchange(legs_kept_, {}))
    restore_legs(kept.legs, now);
  for (const auto& p : std::exchange(progress_kept_, {}))
    progress(p, now, fx);
  for (auto& orders : std::exchange(orders_kept_, {}))
    carry_out(std::move(orders), now, fx);
}

void order_desk::tick(timestamp now, desk_effects& fx) {
  settle(now, fx);
  for (const auto& order : waiting_.expired(now))
    place(order, false, now, fx);
  admit_waiting(now, fx);
  for (const auto& over : pool_.ejections_over(now))
    fx.ejections.push_back({over.rank, over.epoch, true, over.renewed});
}

} // namespace rankwise::core
