#include "messages/type_ids.hpp"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

/// Every message type is written as the bytes that golden.txt holds, and read back to the same. Fields are only
/// appended: a changed line is a changed wire. RANKWISE_WRITE_GOLDEN=1 writes the file anew.
namespace rankwise {
namespace {

using buffer = caf::binary_serializer::container_type;

const char* const golden_file = RANKWISE_MESSAGE_GOLDENS;

struct config : caf::actor_system_config {
  config() {
    add_message_types<caf::id_block::rankwise>();
    set("scheduler.policy", caf::atom("testing"));
  }
};

std::string to_hex(const buffer& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string result;
  for (const auto c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    result += digits[b >> 4];
    result += digits[b & 15];
  }
  return result;
}

core::request_ptr full_request() {
  core::generate_request r;
  r.rid = "rid-1";
  r.input_ids = {1, 2, 300'000};
  r.sampling.max_new_tokens = 9;
  r.sampling.temperature = 0.5;
  r.sampling.stop = {"\n", "end"};
  r.sampling.stop_token_ids = {2};
  r.sampling.regex = "a+";
  r.sampling.ignore_eos = true;
  r.sampling.stream_interval = 4;
  r.sampling.logit_bias = {{"5", -1.5}};
  r.sampling.sampling_seed = 77;
  r.samples = 2;
  r.stream = false;
  r.data_parallel_rank = 3;
  r.bootstrap = core::bootstrap_info{"host", 8998, 0x7fff'ffff'ffff'fffe};
  r.deadline = core::timestamp{core::duration{123'456'789}};
  r.priority = -3;
  r.first_token_by = core::timestamp{core::duration{987'654}};
  return std::make_shared<const core::generate_request>(std::move(r));
}

core::load_report a_report() {
  core::load_report r;
  r.rank = {1, 2};
  r.epoch = 3;
  r.sequence = 4;
  r.received_at = core::timestamp{core::duration{5}};
  r.num_running = 6;
  r.num_waiting = 7;
  r.kv_used_tokens = 8;
  r.kv_total_tokens = 9;
  return r;
}

actor_status a_status() {
  return {"dp_rank", "decode/3", "ready", "slow", 1, 2, 3, 4, 5, "boom", true, false};
}

core::request_counts some_counts() {
  core::request_counts c;
  c.submitted = 1;
  c.accepted = 2;
  c.completed = 3;
  c.failed = 4;
  c.cancelled = 5;
  c.refused = 6;
  c.moved = 7;
  c.accepted_open = 8;
  c.tokens_delivered = 8;
  c.batches = 9;
  c.outputs_of_unknown_requests = 10;
  c.outputs_of_old_epochs = 11;
  c.outputs_of_old_attempts = 12;
  c.by_failure[core::failure_count - 1] = 13;
  c.placements_of_old_terms = 14;
  c.outputs_behind_a_gap = 15;
  return c;
}

pool_view a_pool_view() {
  pool_view v{1, "decode", "decode", "headroom", 8, 7, 8, 55, 4, {}, {}};
  v.counts.placed = 5;
  v.counts.placed_by = {1, 2, 2};
  v.counts.reports[4] = 6;
  core::rank_row row;
  row.rank = {1, 2};
  row.epoch = 3;
  row.state = core::rank_state::suspect;
  row.requests = 4;
  row.reported = true;
  row.report_age_s = 0.25;
  row.reported_kv_used = 99;
  row.share = 0.5;
  row.ejected = true;
  row.drain_cut = 5;
  v.ranks.push_back(row);
  return v;
}

class golden_bytes : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream in{golden_file};
    for (std::string name, hex; in >> name >> hex;)
      recorded()[name] = hex;
  }
  static void TearDownTestSuite() {
    if (!writing())
      return;
    std::ofstream out{golden_file};
    for (const auto& [name, hex] : written())
      out << name << ' ' << hex << '\n';
  }
  static bool writing() { return std::getenv("RANKWISE_WRITE_GOLDEN") != nullptr; }
  static std::map<std::string, std::string>& recorded() {
    static std::map<std::string, std::string> lines;
    return lines;
  }
  static std::map<std::string, std::string>& written() {
    static std::map<std::string, std::string> lines;
    return lines;
  }

  template <class T>
  buffer serialise(T& value) {
    buffer bytes;
    caf::binary_serializer sink{system_, bytes};
    const auto error = sink(value);
    EXPECT_FALSE(error) << system_.render(error);
    return bytes;
  }

  template <class T>
  T check(const std::string& name, T value) {
    SCOPED_TRACE(name);
    const auto bytes = serialise(value);
    const auto hex = to_hex(bytes);
    written()[name] = hex;
    if (!writing()) {
      EXPECT_TRUE(recorded().contains(name)) << "golden.txt has no line for it";
      EXPECT_EQ(recorded()[name], hex);
    }
    T back{};
    caf::binary_deserializer source{system_, bytes};
    const auto error = source(back);
    EXPECT_FALSE(error) << system_.render(error);
    EXPECT_EQ(source.remaining(), 0u);
    EXPECT_EQ(to_hex(serialise(back)), hex);
    return back;
  }

  config config_;
  caf::actor_system system_{config_};
};

TEST_F(golden_bytes, every_message_type_is_written_as_recorded_and_read_back) {
  check("submit_request", submit_request{7, full_request()});
  check("cancel_request", cancel_request{7, core::failure::client_cancelled});
  check("abort_request", abort_request{"rid-1"});

  core::output_batch batch;
  batch.rank = {0, 1};
  batch.epoch = 2;
  batch.owner = 0x1234;
  batch.number = 3;
  batch.received_at = core::timestamp{core::duration{1'000'000'007}};
  core::output_item item;
  item.handle = 0x1234'5678'9abc'def0;
  item.attempt = 1;
  item.token_count = 2;
  item.finish = core::finish_reason::stop;
  item.prompt_tokens = 3;
  item.completion_tokens = 4;
  item.cached_tokens = 5;
  item.finish_status = 500;
  item.matched_token = 6;
  item.finish_text = 0;
  batch.items = {item};
  batch.tokens = {10, -1};
  batch.texts = {"why"};
  check("output_batch", batch);

  core::placement placed;
  placed.handle = 1;
  placed.attempt = 2;
  placed.rank = {3, 4};
  placed.epoch = 5;
  placed.term = 9;
  placed.rule = core::placement_rule::bootstrap_room;
  placed.dp_size = 6;
  placed.bootstrap_host = "host";
  placed.bootstrap_port = 8998;
  check("placement", placed);
  check("refusal", core::refusal{1, 2, 3, core::failure::rank_queue_full, "full"});
  check("rank_route", rank_route{{1, 2}, 3, nullptr});
  check("rank_lost", rank_lost{{1, 2}, 3, "killed"});
  check("peer_changed", peer_changed{"dp_controller", 1, 2, 3, nullptr, 4});

  core::request_row row;
  row.rid = "rid-1";
  row.sample = 1;
  row.stage = "streaming";
  row.rank = core::rank_id{1, 2};
  row.attempt = 3;
  row.prompt_tokens = 4;
  row.completion_tokens = 5;
  row.age_s = 1.5;
  check("request_list", request_list{9, {row}});
  check("request_counts", some_counts());
  check("actor_status", a_status());

  core::pool_orders orders;
  orders.owner = 9;
  orders.releases = {1};
  orders.ends = {{2, 1, 7}};
  core::place_order place;
  place.handle = 3;
  place.attempt = 1;
  place.sample = 2;
  place.of_pair = true;
  place.rid = "rid-1";
  place.prompt_tokens = 4;
  place.max_new_tokens = 5;
  place.priority = -3;
  place.deadline = core::timestamp{core::duration{6}};
  place.first_token_by = core::timestamp{core::duration{7}};
  place.data_parallel_rank = 8;
  place.bootstrap = core::bootstrap_info{"host", 1, 2};
  place.blocks = {9, 10};
  orders.places = {place};
  EXPECT_EQ(check("pool_orders", orders).places.at(0), place) << "received_at means nothing elsewhere, and is not sent";
  check("batch_progress", core::batch_progress{{1, 2}, 3, 4, 5, {4}, {9}, {5}, {7}, 1, 6});
  check("load_update", load_update{{a_report()}});
  core::rank_announcement announced;
  announced.rank = {1, 2};
  announced.epoch = 3;
  announced.kv_capacity = 4;
  announced.max_running = 5;
  announced.chunk_tokens = 6;
  announced.data_parallel_size = 7;
  announced.renewed = true;
  announced.state = core::rank_state::draining;
  check("rank_up", rank_up{announced, nullptr});
  check("rank_not_up", rank_not_up{{1, 2}, 3, core::rank_state::suspect, "silent"});
  check("rank_actor_lost", rank_actor_lost{{1, 2}});
  check("dispatch_failed", dispatch_failed{{1, 2}, {3, 4}, core::failure::rank_queue_full, "full"});
  core::leg_record leg;
  leg.handle = 1;
  leg.attempt = 2;
  leg.rank = {4, 5};
  leg.epoch = 6;
  leg.prompt_tokens = 7;
  leg.limit_tokens = 8;
  leg.prefilled = leg.released = true;
  check("owner_legs", core::owner_legs{9, {leg}});
  check("pool_view", a_pool_view());

  link_event event;
  event.kind = link_event_kind::registered;
  event.rank = {1, 2};
  event.epoch = 3;
  event.cause = "why";
  event.kv_capacity = 4;
  event.max_running = 5;
  event.chunk_tokens = 6;
  event.data_parallel_size = 7;
  event.max_model_len = 8;
  event.engine_version = "sglang-0.5.23";
  event.layouts = {{"SamplingParams", {"temperature"}}};
  event.model_name = "/models/m";
  event.data_parallel_rank = 9;
  check("link_event", event);
  check("dispatch_order", dispatch_order{1, 2, 3, 4, full_request(), true, {"host", 1, 2}});
  check("close_order", close_order{{{1, 2}}, {{3, 4}}});
  check("legs_on_rank", legs_on_rank{1, 2, {{3, 4}}});
  check("outstanding_work", outstanding_work{1, 2, 3, true});
  check("restart_child", restart_child{"dp_rank", {1, 2}});
  check("crash_child", crash_child{"dp_rank", {1, 2}});
  child_list children;
  children.children = {{a_status(), nullptr}};
  children.degraded = true;
  children.degraded_reason = "parked";
  check("child_list", children);
  node_snapshot snapshot;
  snapshot.actors = {a_status()};
  snapshot.pools = {a_pool_view()};
  snapshot.requests = some_counts();
  snapshot.requests_known = true;
  snapshot.open_streams = 3;
  snapshot.degraded = true;
  snapshot.degraded_reason = "parked";
  snapshot.silent = {"dp_rank decode/3"};
  check("node_snapshot", snapshot);
  check("rank_command", rank_command{{1, 2}, rank_wish::remove, std::chrono::seconds{3}, true});
  check("rank_command_result", rank_command_result{true, true, core::rank_state::drained, "is drained"});
  check("placement_query", placement_query{"r"});
  core::placement_record record;
  record.rid = "r";
  record.handle = 1;
  record.attempt = 2;
  record.sample = 3;
  record.pool = 4;
  record.rank = 5;
  record.epoch = 6;
  record.refused = true;
  record.rule = "policy headroom";
  record.at = core::timestamp{std::chrono::nanoseconds{7}};
  record.prompt_tokens = 8;
  record.max_new_tokens = 9;
  record.candidates.resize(2);
  record.candidates[1].view = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, {}, 0.5, std::chrono::nanoseconds{8}, true};
  record.candidates[1].score = 0.25;
  const auto back = check("placement_list", placement_list{{record}, {"decode"}});
  EXPECT_FALSE(back.records.at(0).candidates.at(0).score);
  EXPECT_EQ(back.records.at(0).candidates.at(1).score, 0.25);
  EXPECT_EQ(back.records.at(0).candidates.at(1).view.report_age, std::chrono::nanoseconds{8});
  check("policy_change", policy_change{1, "round_robin"});
  check("policy_change_result", policy_change_result{true, "headroom"});
  EXPECT_EQ(written().size(), 36u) << "as many as there are type ids";
}

TEST_F(golden_bytes, a_request_comes_back_whole) {
  const auto back = check("submit_request", submit_request{7, full_request()});
  EXPECT_EQ(*back.request, *full_request());
  core::generate_request plain;
  plain.rid = "x";
  plain.input_ids = {1};
  submit_request m{1, std::make_shared<const core::generate_request>(plain)};
  const auto bytes = serialise(m);
  submit_request read{9, full_request()}; // absent values must also clear what was there
  caf::binary_deserializer source{system_, bytes};
  EXPECT_FALSE(source(read));
  EXPECT_EQ(*read.request, plain);
}

TEST_F(golden_bytes, times_come_back_to_the_nanosecond) {
  const auto back = check("load_update", load_update{{a_report()}});
  EXPECT_EQ(back.reports.at(0), a_report());
}

} // namespace
} // namespace rankwise
