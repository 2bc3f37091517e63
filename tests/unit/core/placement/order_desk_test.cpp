#include "core/placement/order_desk.hpp"
#include "tests/unit/core/mini_node.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace rankwise::core {
namespace {

using test::at_ms;
using test::make_request;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr owner_id first = 1;
constexpr owner_id second = 2;

request_handle handle_of(owner_id owner, std::uint32_t slot) {
  return make_handle(owner, 1, slot);
}

/// A desk of one pool, and what it answered.
class desk : public testing::Test {
 protected:
  void open(std::uint16_t ranks, pool_options pool = {}) {
    make(std::move(pool));
    for (std::uint16_t r = 0; r < ranks; ++r)
      it->rank_up(test::up(0, r, 1, ranks), at_ms(0), fx);
    it->owner_opened(0, first, at_ms(0), fx);
    it->owner_opened(1, second, at_ms(0), fx);
  }
  void make(pool_options pool, std::size_t ranks_expected = 0, std::size_t owners_expected = 0) {
    order_desk_options options;
    options.pool = std::move(pool);
    options.ranks_expected = ranks_expected;
    options.owners_expected = owners_expected;
    it.emplace(std::move(options));
  }

  static place_order order(request_handle handle, std::size_t prompt_tokens = 10, std::uint32_t attempt = 0) {
    return order_of(make_request("r" + std::to_string(handle), prompt_tokens), {handle, attempt});
  }
  void place(place_order o, std::int64_t ms = 1) {
    pool_orders orders;
    orders.owner = owner_of(o.handle);
    orders.places = {std::move(o)};
    it->take(std::move(orders), at_ms(ms), fx);
  }
  void end(request_handle handle, std::uint32_t attempt = 0, std::int64_t ms = 2) {
    pool_orders orders;
    orders.owner = owner_of(handle);
    orders.ends = {{handle, attempt, 0}};
    it->take(std::move(orders), at_ms(ms), fx);
  }
  static leg_record leg(request_handle handle, std::uint16_t rank, rank_epoch epoch = 1) {
    leg_record l;
    l.handle = handle;
    l.rank = {0, rank};
    l.epoch = epoch;
    l.prompt_tokens = 100;
    l.limit_tokens = 116;
    return l;
  }
  std::vector<request_handle> placed() {
    std::vector<request_handle> result;
    for (const auto& p : fx.placed)
      result.push_back(p.handle);
    return result;
  }

  std::optional<order_desk> it;
  desk_effects fx;
};

TEST_F(desk, answers_an_order_with_rank_epoch_and_term) {
  pool_options pool;
  pool.term = 5;
  open(2, pool);
  place(order(handle_of(first, 1)));
  ASSERT_THAT(fx.placed, SizeIs(1));
  EXPECT_EQ(fx.placed[0].epoch, 1u);
  EXPECT_EQ(fx.placed[0].term, 5u);
  EXPECT_EQ(fx.placed[0].dp_size, 2u);
  EXPECT_THAT(fx.refused, IsEmpty());
}

TEST_F(desk, a_leg_that_its_owner_lost_before_the_pool_heard_of_it_is_charged_once) {
  open(2);
  const auto handle = handle_of(first, 1);
  place(order(handle, 10, 0));
  place(order(handle, 10, 1)); // no end came between them
  EXPECT_EQ(it->pool().charged_legs(), std::vector<leg_id>({{handle, 1}}));
  end(handle, 0); // late: of the attempt that is gone
  EXPECT_EQ(it->pool().charge_count(), 1u);
  end(handle, 1);
  EXPECT_EQ(it->pool().charge_count(), 0u);
}

TEST_F(desk, an_order_that_comes_twice_is_refused_and_charged_once) {
  open(1);
  const auto handle = handle_of(first, 1);
  place(order(handle));
  place(order(handle));
  EXPECT_THAT(fx.placed, SizeIs(1));
  ASSERT_THAT(fx.refused, SizeIs(1));
  EXPECT_EQ(fx.refused[0].reason, failure::duplicate_rid);
  EXPECT_EQ(it->pool().charge_count(), 1u);
}

TEST_F(desk, an_owner_that_is_replaced_leaves_neither_charges_nor_places_to_wait) {
  pool_options pool;
  pool.requests_in_flight_max = 2;
  open(1, pool);
  place(order(handle_of(first, 1)));
  place(order(handle_of(second, 1)));
  place(order(handle_of(first, 2))); // these two wait
  place(order(handle_of(second, 2)));
  EXPECT_EQ(it->waiting(), 2u);
  fx.clear();
  it->owner_opened(0, 3, at_ms(5), fx);
  EXPECT_EQ(it->waiting(), 0u);
  EXPECT_THAT(placed(), ElementsAre(handle_of(second, 2))) << "the other owner's, in the place that came free";
  for (const auto& l : it->pool().charged_legs())
    EXPECT_EQ(owner_of(l.handle), second);
}

TEST_F(desk, after_a_restart_nothing_is_placed_until_ranks_and_owners_have_spoken) {
  make({}, 1, 2);
  it->owner_opened(0, first, at_ms(0), fx);
  it->owner_opened(1, second, at_ms(0), fx);
  place(order(handle_of(first, 9)));
  it->rank_up(test::up(0, 0), at_ms(1), fx);
  it->restore({first, {leg(handle_of(first, 1), 0)}}, at_ms(2), fx);
  EXPECT_TRUE(it->is_settling());
  EXPECT_THAT(fx.placed, IsEmpty());
  it->restore({second, {}}, at_ms(3), fx);
  EXPECT_FALSE(it->is_settling());
  EXPECT_THAT(placed(), ElementsAre(handle_of(first, 9)));
  EXPECT_EQ(it->pool().charge_count(), 2u);
}

TEST_F(desk, after_a_restart_the_time_to_wait_ends_and_who_comes_later_is_merged) {
  make({}, 2, 2);
  it->rank_up(test::up(0, 0, 1, 2), at_ms(0), fx);
  it->owner_opened(0, first, at_ms(0), fx);
  it->restore({first, {leg(handle_of(first, 1), 0), leg(handle_of(first, 2), 1)}}, at_ms(1), fx);
  it->tick(at_ms(300), fx);
  EXPECT_FALSE(it->is_settling());
  EXPECT_EQ(it->pool().charge_count(), 1u) << "rank 1 has not announced itself";
  EXPECT_THAT(it->unrestored().legs(), SizeIs(1));
  it->rank_up(test::up(0, 1, 1, 2), at_ms(310), fx);
  EXPECT_EQ(it->pool().charge_count(), 2u);
  EXPECT_THAT(it->unrestored().legs(), IsEmpty());
  it->restore({second, {leg(handle_of(second, 1), 1)}}, at_ms(320), fx);
  EXPECT_EQ(it->pool().charge_count(), 3u);
}

TEST_F(desk, a_leg_on_a_rank_that_announces_itself_late_and_has_ended_meanwhile_does_not_come_back) {
  make({}, 1, 1);
  it->owner_opened(0, first, at_ms(0), fx);
  it->restore({first, {leg(handle_of(first, 1), 0), leg(handle_of(first, 2), 0), leg(handle_of(first, 3), 0)}},
              at_ms(1), fx);
  it->tick(at_ms(300), fx);
  EXPECT_THAT(it->unrestored().legs(), SizeIs(3));
  end(handle_of(first, 1));
  batch_progress p;
  p.epoch = 1;
  p.owner = first;
  p.first_tokens = {handle_of(first, 3)};
  p.first_cached = {0};
  p.ended = {handle_of(first, 2)};
  p.ended_tokens = {5};
  it->take(p, at_ms(301), fx);
  it->rank_up(test::up(0, 0), at_ms(302), fx);
  EXPECT_EQ(it->pool().charged_legs(), std::vector<leg_id>({{handle_of(first, 3), 0}}));
  EXPECT_TRUE(it->pool().is_prefilled(handle_of(first, 3)));
}

TEST_F(desk, legs_of_an_incarnation_that_is_gone_are_not_restored) {
  make({}, 1, 1);
  it->owner_opened(0, first, at_ms(0), fx);
  it->rank_up(test::up(0, 0, 4), at_ms(0), fx);
  it->restore({first, {leg(handle_of(first, 1), 0, 3)}}, at_ms(1), fx);
  EXPECT_EQ(it->pool().charge_count(), 0u);
  EXPECT_THAT(it->unrestored().legs(), IsEmpty());
}

TEST_F(desk, a_rank_without_its_actor_gets_nothing_while_another_is_ready) {
  open(2);
  it->rank_actor_lost({0, 0});
  for (std::uint32_t slot = 1; slot <= 4; ++slot)
    place(order(handle_of(first, slot)));
  for (const auto& p : fx.placed)
    EXPECT_EQ(p.rank.rank, 1);
}

TEST_F(desk, a_rank_is_told_its_work_until_it_was_told_that_there_is_none) {
  open(1);
  place(order(handle_of(first, 1), 100));
  ASSERT_THAT(it->work_to_tell(at_ms(2)), SizeIs(testing::Ge(1u)));
  EXPECT_EQ(it->work_of(0, at_ms(2)).prefill_tokens, 100u);
  end(handle_of(first, 1));
  const auto last = it->work_to_tell(at_ms(3));
  ASSERT_FALSE(last.empty());
  EXPECT_EQ(last[0].requests, 0u);
  EXPECT_THAT(it->work_to_tell(at_ms(4)), IsEmpty());
}

// Owners that place, end, die and come again, ranks that come and go, controllers that restart: whenever nothing is
// under way, what is charged is what the owners have placed.
TEST_F(desk, a_random_life_keeps_the_books_of_all_owners) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random{seed};
    const auto below = [&](std::uint64_t m) { return random() % m; };
    pool_options pool;
    pool.requests_in_flight_max = 20;
    fx.clear();
    constexpr std::uint16_t ranks = 3;
    constexpr std::size_t managers = 3;
    std::vector<rank_epoch> epochs(ranks, 1);
    std::vector<owner_id> owners{1, 2, 3};
    owner_id owners_given = 3;
    std::map<leg_id, std::pair<std::uint16_t, rank_epoch>> legs; // what the owners have placed
    std::set<leg_id> asked;
    std::uint32_t slot = 0;
    const auto introduce_all = [&] {
      for (std::uint16_t r = 0; r < ranks; ++r)
        it->rank_up(test::up(0, r, epochs[r], ranks), at_ms(0), fx);
      for (std::size_t i = 0; i < managers; ++i)
        it->owner_opened(i, owners[i], at_ms(0), fx);
    };
    const auto hear = [&] {
      for (const auto& p : fx.placed)
        if (asked.erase({p.handle, p.attempt}) != 0)
          legs[{p.handle, p.attempt}] = {p.rank.rank, p.epoch};
      for (const auto& r : fx.refused)
        asked.erase({r.handle, r.attempt});
      fx.clear();
    };
    make(pool);
    introduce_all();
    for (int step = 0; step < 2000; ++step) {
      const auto now = step + 1;
      const auto what = below(100);
      if (what < 50) {
        const auto handle = handle_of(owners[below(managers)], ++slot);
        asked.insert({handle, 0});
        place(order(handle, 1 + below(500)), now);
      } else if (what < 85 && !legs.empty()) {
        const auto found = std::next(legs.begin(), static_cast<std::ptrdiff_t>(below(legs.size())));
        const auto gone = found->first;
        legs.erase(found);
        end(gone.handle, gone.attempt, now);
      } else if (what < 90) {
        const auto r = static_cast<std::uint16_t>(below(ranks));
        it->rank_not_up({0, r}, epochs[r], rank_state::down, at_ms(now), fx);
        std::erase_if(legs, [&](const auto& l) { return l.second.first == r; });
        it->rank_up(test::up(0, r, ++epochs[r], ranks), at_ms(now), fx);
      } else if (what < 94) {
        const auto index = below(managers);
        const auto dead = owners[index];
        owners[index] = ++owners_given;
        std::erase_if(legs, [&](const auto& l) { return owner_of(l.first.handle) == dead; });
        std::erase_if(asked, [&](const leg_id& l) { return owner_of(l.handle) == dead; });
        it->owner_opened(index, owners[index], at_ms(now), fx);
      } else if (what < 96) {
        hear();
        pool.term += 1;
        order_desk_options options;
        options.pool = pool;
        options.ranks_expected = ranks;
        options.owners_expected = managers;
        it.emplace(std::move(options));
        introduce_all();
        for (const auto owner : owners) {
          owner_legs told;
          told.owner = owner;
          for (const auto& [l, where] : legs)
            if (owner_of(l.handle) == owner) {
              told.legs.push_back(leg(l.handle, where.first, where.second));
              told.legs.back().attempt = l.attempt;
            }
          it->restore(std::move(told), at_ms(now), fx);
          for (const auto& l : std::set<leg_id>{asked})
            if (owner_of(l.handle) == owner)
              place(order(l.handle, 10, l.attempt), now);
        }
        ASSERT_FALSE(it->is_settling());
      } else {
        it->tick(at_ms(now), fx);
      }
      hear();
      std::vector<leg_id> expected;
      for (const auto& [l, where] : legs)
        expected.push_back(l);
      ASSERT_EQ(it->pool().charged_legs(), expected) << "seed " << seed << ", step " << step;
      ASSERT_EQ(it->waiting(), asked.size()) << "seed " << seed << ", step " << step;
    }
  }
}

} // namespace
} // namespace rankwise::core
