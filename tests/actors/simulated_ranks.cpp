#include "tests/actors/simulated_ranks.hpp"

#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/layouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace rankwise::test {

namespace sg = wire::sglang;
using namespace std::chrono_literals;

namespace {

constexpr core::duration heartbeat_timeout = 500ms;
constexpr core::duration partner_wait_max = 1s;
constexpr std::uint64_t kv_capacity = 1'000'000;

sg::registration registration_of_every_rank() {
  sg::registration r;
  r.positional_layouts = sg::sglang_0_5_23_layouts();
  return r;
}

std::string_view text_of(link_event_kind kind) {
  switch (kind) {
  case link_event_kind::hello:
    return "hello";
  case link_event_kind::registered:
    return "registered";
  case link_event_kind::refused:
    return "refused";
  case link_event_kind::lost:
    return "lost";
  case link_event_kind::reconnected:
    return "reconnected";
  case link_event_kind::restored:
    return "restored";
  }
  return "unknown";
}

} // namespace

simulated_ranks::simulated_ranks(simulated_ranks_options options, event_queue& events, sim::random_source& random,
                                 simulated_ranks_callbacks callbacks)
    : options_(std::move(options)), events_(events), random_(random), callbacks_(std::move(callbacks)),
      decoder_(sg::command_decoder::from_registration(registration_of_every_rank()).value()) {
  for (std::uint16_t pool = 0; pool < options_.pools.size(); ++pool)
    for (std::uint16_t rank = 0; rank < options_.pools[pool].ranks; ++rank)
      states_[{pool, rank}].id = {pool, rank};
}

core::duration simulated_ranks::some(core::duration max) {
  return max.count() <= 0 ? core::duration{} : core::duration{random_.below(static_cast<std::uint64_t>(max.count()))};
}

core::timestamp simulated_ranks::in_order(core::timestamp& until, core::duration delay) {
  until = std::max(until, callbacks_.now() + delay);
  return until;
}

// -- the node's side -------------------------------------------------------------------------------------------------

core::send_result simulated_ranks::send(core::rank_id id, core::rank_epoch epoch, core::rank_frame frame) noexcept {
  auto& r = of(id);
  if (r.closed || r.lost || r.epoch != epoch)
    return core::send_result::unknown_link;
  const bool is_abort = frame.kind == core::frame_kind::abort;
  if (!is_abort && callbacks_.now() < r.queue_full_until)
    return random_.below(2) == 0 ? core::send_result::queue_full_requests : core::send_result::queue_full_bytes;
  if (!r.connected)
    return core::send_result::queued; // the loss is not noticed yet
  const bool overtakes = options_.aborts_overtake && is_abort;
  const auto arrival =
      overtakes ? callbacks_.now()
                : in_order(r.down_until, some(options_.delay_max) +
                                             (options_.aborts_overtake ? core::duration{10ms} : core::duration{}));
  events_.at(arrival, [this, &r, epoch, connection = r.connection, sent = std::move(frame)]() mutable {
    if (r.connection == connection && r.alive)
      receive(r, std::move(sent), epoch);
  });
  return core::send_result::queued;
}

core::timestamp simulated_ranks::last_output(core::rank_id rank) const noexcept {
  return states_.at(rank).last_output;
}

void simulated_ranks::close(core::rank_id rank, core::rank_epoch epoch) noexcept {
  if (auto& r = of(rank); r.epoch == epoch)
    r.closed = true;
}

void simulated_ranks::tell(rank_state& r, link_event_kind kind, std::string cause) {
  link_event e;
  e.kind = kind;
  e.rank = r.id;
  e.epoch = r.epoch;
  e.cause = std::move(cause);
  if (kind == link_event_kind::registered) {
    e.kv_capacity = kv_capacity;
    e.max_running = 256;
    e.chunk_tokens = 8192;
    e.data_parallel_size = options_.pools[r.id.pool].ranks;
    e.max_model_len = 32'768;
    e.engine_version = "sglang-0.5.23";
    e.layouts = sg::sglang_0_5_23_layouts();
  }
  callbacks_.trace(fmt::format("link {}/{} epoch {} {} ({})", r.id.pool, r.id.rank, r.epoch, text_of(kind), e.cause));
  callbacks_.on_link_event(std::move(e));
}

void simulated_ranks::notice_loss(rank_state& r, core::duration within, std::string cause) {
  if (!r.registered)
    return; // nobody was connected
  events_.at(callbacks_.now() + some(within), [this, &r, epoch = r.epoch, why = std::move(cause)] {
    if (r.epoch != epoch || r.lost || r.closed || r.connected)
      return;
    r.lost = true;
    tell(r, link_event_kind::lost, why);
  });
}

// -- links -----------------------------------------------------------------------------------------------------------

void simulated_ranks::connect(rank_state& r) {
  ++r.connection;
  r.connected = true;
  for (auto& batch : std::exchange(r.unsent, {}))
    emit(r, std::move(batch));
}

void simulated_ranks::disconnect(rank_state& r) {
  ++r.connection;
  r.connected = false;
}

void simulated_ranks::cut(core::rank_id rank) {
  auto& r = of(rank);
  if (!r.connected)
    return;
  disconnect(r);
  notice_loss(r, heartbeat_timeout, "its connection was lost");
}

void simulated_ranks::reconnect(core::rank_id rank) {
  auto& r = of(rank);
  if (!r.alive || r.frozen || r.connected || !r.registered || r.closed)
    return;
  if (!std::exchange(r.lost, true))
    tell(r, link_event_kind::lost, "its connection was lost");
  r.lost = false;
  ++r.epoch;
  tell(r, link_event_kind::reconnected, "reconnected without HELLO");
  connect(r);
}

void simulated_ranks::register_again(core::rank_id rank) {
  auto& r = of(rank);
  if (!r.alive || r.frozen || !r.connected || !r.registered || r.closed)
    return;
  disconnect(r);
  r.lost = true;
  tell(r, link_event_kind::lost, "it registered again");
  reconnect(rank);
  tell(r, link_event_kind::registered, "registered");
}

void simulated_ranks::fill_queue(core::rank_id rank, core::timestamp until) {
  of(rank).queue_full_until = until;
}

// -- processes -------------------------------------------------------------------------------------------------------

void simulated_ranks::start_process(core::rank_id rank, bool twice) {
  auto& r = of(rank);
  disconnect(r);
  r.unsent.clear();
  r.unread.clear();
  r.jobs.clear();
  r.alive = true;
  r.frozen = false;
  r.step_planned = false;
  const auto process = ++r.process;
  const auto say_hello = [this, &r] {
    ++r.epoch;
    r.lost = false;
    r.closed = false;
    r.registered = false;
    r.reports = 0;
    tell(r, link_event_kind::hello, "HELLO");
  };
  say_hello();
  auto next = callbacks_.now() + some(20ms);
  if (twice) {
    events_.at(next, [&r, process, say_hello] {
      if (r.process == process && r.alive)
        say_hello();
    });
    next += some(20ms);
  }
  events_.at(next, [this, &r, process] {
    if (r.process != process || !r.alive)
      return;
    connect(r);
    r.registered = true;
    tell(r, link_event_kind::registered, "registered");
  });
}

void simulated_ranks::kill(core::rank_id rank) {
  auto& r = of(rank);
  if (!r.alive)
    return;
  r.alive = false;
  r.frozen = false;
  r.jobs.clear();
  r.unread.clear();
  r.unsent.clear();
  disconnect(r);
  // A process that dies closes its connection; a machine that dies does not.
  notice_loss(r, random_.below(2) == 0 ? core::duration{1ms} : heartbeat_timeout, "its connection was lost");
}

void simulated_ranks::freeze(core::rank_id rank) {
  auto& r = of(rank);
  if (!r.alive || r.frozen)
    return;
  r.frozen = true;
  events_.at(callbacks_.now() + heartbeat_timeout, [this, &r, freeze = ++r.freezes, connection = r.connection] {
    if (r.freezes == freeze && r.connection == connection && r.frozen && r.connected) {
      disconnect(r);
      notice_loss(r, {}, "no heartbeat");
    }
  });
}

void simulated_ranks::thaw(core::rank_id rank) {
  auto& r = of(rank);
  if (!std::exchange(r.frozen, false))
    return;
  for (auto& [frame, epoch] : std::exchange(r.unread, {}))
    receive(r, std::move(frame), epoch);
  plan_step(r);
  if (!r.connected)
    events_.at(callbacks_.now() + some(50ms), [this, rank] { reconnect(rank); });
}

void simulated_ranks::die_aloud(core::rank_id rank) {
  auto& r = of(rank);
  if (!r.alive || r.frozen || !r.connected)
    return;
  engine_batch last;
  last.dead = true;
  emit(r, std::move(last));
  events_.at(callbacks_.now() + options_.delay_max + some(20ms), [this, rank, process = r.process] {
    if (of(rank).process == process)
      kill(rank);
  });
}

void simulated_ranks::heal(core::rank_id rank) {
  auto& r = of(rank);
  r.queue_full_until = {};
  if (!r.alive)
    return start_process(rank);
  if (r.frozen)
    thaw(rank);
  reconnect(rank); // nothing when it is connected, or about to register
}

std::vector<core::rank_id> simulated_ranks::ranks() const {
  std::vector<core::rank_id> result;
  for (const auto& [id, r] : states_)
    result.push_back(id);
  return result;
}

bool simulated_ranks::is_connected(core::rank_id rank) const {
  return states_.at(rank).connected;
}

std::vector<simulated_ranks::unwanted_job> simulated_ranks::running_for_nobody(core::rank_id rank) const {
  std::vector<unwanted_job> result;
  for (const auto& j : states_.at(rank).jobs)
    if (!j.aborted && !callbacks_.is_wanted(j.rid))
      result.push_back({j.rid, j.received_at, j.unwanted_at.value_or(callbacks_.now())});
  return result;
}

std::size_t simulated_ranks::running(core::rank_id rank) const {
  return states_.at(rank).jobs.size();
}

void simulated_ranks::receive(rank_state& r, core::rank_frame frame, core::rank_epoch epoch) {
  if (r.frozen) {
    r.unread.emplace_back(std::move(frame), epoch);
    return;
  }
  const auto command = decoder_.decode(static_cast<std::uint8_t>(frame.kind), frame.payload);
  if (!command)
    return callbacks_.violation("an engine could not decode a frame: " + command.error().field);
  if (const auto* add = std::get_if<sg::add_request>(&*command)) {
    callbacks_.trace(fmt::format("engine {}/{} got {}", r.id.pool, r.id.rank, add->rid));
    if (std::any_of(r.jobs.begin(), r.jobs.end(), [&](const job& j) { return j.rid == add->rid; }))
      return callbacks_.violation("an engine was sent " + add->rid + " twice");
    job j;
    j.rid = add->rid;
    j.crc = sg::rid_crc32(sg::client_part(add->rid));
    j.epoch = epoch;
    j.prompt_tokens = static_cast<std::uint32_t>(add->input_ids.size());
    j.steps_to_prefill = static_cast<std::uint32_t>(random_.below(4));
    j.target = static_cast<std::uint32_t>(std::max(add->max_new_tokens, 1));
    if (add->bootstrap)
      j.room = add->bootstrap->room;
    j.kv_here = role_of(r) != core::pool_role::decode;
    j.fails = random_.uniform() < options_.error_share;
    j.received_at = callbacks_.now();
    r.jobs.push_back(std::move(j));
  } else if (const auto* abort = std::get_if<sg::abort_request>(&*command)) {
    for (const auto& rid : abort->rids) {
      callbacks_.trace(fmt::format("engine {}/{} is to abort {}", r.id.pool, r.id.rank, rid));
      for (auto& j : r.jobs)
        if (j.rid == rid)
          j.aborted = true;
    }
  }
  plan_step(r);
}

void simulated_ranks::plan_step(rank_state& r) {
  if (r.step_planned || !r.alive || r.jobs.empty())
    return;
  r.step_planned = true;
  events_.at(callbacks_.now() + 3ms + some(12ms), [this, &r, process = r.process] {
    if (r.process == process) {
      r.step_planned = false;
      step(r);
    }
  });
}

void simulated_ranks::step(rank_state& r) {
  if (!r.alive || r.frozen)
    return;
  // One batch for all; planted outputs_keep_epoch: one for each epoch under which requests were sent.
  std::map<core::rank_epoch, engine_batch> batches;
  auto jobs = std::move(r.jobs);
  r.jobs.clear();
  std::uint64_t kv_used = 0;
  for (auto& j : jobs) {
    auto& batch = batches[options_.outputs_keep_epoch ? j.epoch : 0];
    batch.content.epoch = options_.outputs_keep_epoch ? j.epoch : 0;
    if (run(r, j, batch.content))
      continue;
    kv_used += j.prompt_tokens + j.generated;
    r.jobs.push_back(std::move(j));
  }
  for (auto& [epoch, batch] : batches) {
    batch.content.rank = r.id;
    batch.report.rank = r.id;
    batch.report.num_running = static_cast<std::uint32_t>(r.jobs.size());
    batch.report.kv_used_tokens = kv_used;
    batch.report.kv_total_tokens = kv_capacity;
    emit(r, std::move(batch));
  }
  plan_step(r);
}

// One step of one request. True: it is over for the engine.
bool simulated_ranks::run(rank_state& r, job& j, core::output_batch& out) {
  if (j.aborted) {
    put(r, j, out, 0, core::finish_reason::abort);
    return true;
  }
  const bool wanted = callbacks_.is_wanted(j.rid);
  if (!wanted && !j.unwanted_at)
    j.unwanted_at = callbacks_.now();
  if (j.steps_to_prefill > 0) {
    --j.steps_to_prefill;
    return false;
  }
  const bool waits_for_partner = role_of(r) == core::pool_role::prefill || !j.kv_here;
  if (wanted && (j.fails || (waits_for_partner && callbacks_.now() > j.received_at + partner_wait_max))) {
    put(r, j, out, 0, core::finish_reason::abort, 500);
    return true;
  }
  if (role_of(r) == core::pool_role::prefill) {
    if (!wanted || !hand_over(r, j))
      return false;
    put(r, j, out, 1, core::finish_reason::length);
    return true;
  }
  if (!j.kv_here || j.generated == j.target || random_.below(10) == 0)
    return false;
  auto tokens = std::min(static_cast<std::uint32_t>(1 + random_.below(3)), j.target - j.generated);
  if (!wanted && j.generated + tokens == j.target && --tokens == 0)
    return false;
  const bool ends = j.generated + tokens == j.target;
  put(r, j, out, tokens,
      !ends                   ? core::finish_reason::none
      : random_.below(2) == 0 ? core::finish_reason::stop
                              : core::finish_reason::length);
  j.generated += tokens;
  return ends;
}

bool simulated_ranks::hand_over(const rank_state& prefill, const job& from) {
  for (auto& [id, r] : states_) {
    if (id.pool == prefill.id.pool || !r.alive)
      continue;
    for (auto& j : r.jobs)
      if (j.room == from.room && !j.kv_here) {
        j.kv_here = true;
        return true;
      }
  }
  return false;
}

void simulated_ranks::put(const rank_state& r, const job& j, core::output_batch& out, std::uint32_t tokens,
                          core::finish_reason finish, std::int32_t status) {
  const auto rid = sg::parse_engine_rid(j.rid);
  if (!rid)
    return callbacks_.violation(
        fmt::format("rank {}/{} was sent a rid without handle: {}", r.id.pool, r.id.rank, j.rid));
  core::output_item item;
  item.handle = rid->handle;
  item.attempt = rid->attempt;
  item.token_offset = static_cast<std::uint32_t>(out.tokens.size());
  item.token_count = tokens;
  item.finish = finish;
  item.prompt_tokens = j.prompt_tokens;
  item.completion_tokens = j.generated + tokens;
  item.finish_status = status;
  for (std::uint32_t i = 0; i < tokens; ++i)
    out.tokens.push_back(sg::expected_token(j.crc, j.generated + i));
  out.items.push_back(item);
}

void simulated_ranks::emit(rank_state& r, engine_batch batch) {
  if (!r.connected) {
    r.unsent.push_back(std::move(batch));
    return;
  }
  events_.at(in_order(r.up_until, some(options_.delay_max)),
             [this, &r, connection = r.connection, sent = std::move(batch)]() mutable {
               if (r.connection == connection)
                 arrive(r, std::move(sent));
             });
}

void simulated_ranks::arrive(rank_state& r, engine_batch batch) {
  if (r.closed)
    return;
  r.last_output = callbacks_.now();
  if (batch.dead)
    return tell(r, link_event_kind::lost, "ENGINE_CORE_DEAD");
  batch.report.epoch = r.epoch;
  batch.report.sequence = ++r.reports;
  batch.report.received_at = callbacks_.now();
  if (random_.uniform() >= options_.report_loss)
    callbacks_.on_report(batch.report);
  if (batch.content.items.empty())
    return;
  if (batch.content.epoch == 0)
    batch.content.epoch = r.epoch;
  batch.content.received_at = callbacks_.now();
  events_.at(in_order(r.told_until, some(options_.receiver_delay_max)),
             [this, told = std::move(batch.content)]() mutable { callbacks_.on_outputs(std::move(told)); });
}

} // namespace rankwise::test
