#include "app/demo/demo_faults.hpp"
#include "app/node/node_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace rankwise;
using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

TEST(config, the_reference_file_is_the_defaults) {
  const auto loaded = app::load_config(REFERENCE_CONFIG);
  ASSERT_TRUE(loaded) << loaded.error().front();
  const auto defaults = app::default_config();
  EXPECT_EQ(loaded->grpc, defaults.grpc);
  EXPECT_EQ(loaded->restarts.restarts_max, defaults.restarts.restarts_max);
  EXPECT_EQ(loaded->restarts.window, defaults.restarts.window);
  EXPECT_EQ(loaded->restarts.backoff_max, defaults.restarts.backoff_max);
  EXPECT_EQ(loaded->forwarder_restarts_max, defaults.forwarder_restarts_max);
  EXPECT_EQ(loaded->heartbeat_timeout_ms, defaults.heartbeat_timeout_ms);
  EXPECT_EQ(loaded->send_queue_bytes_max, defaults.send_queue_bytes_max);
  EXPECT_EQ(loaded->rank_timing.silence.floor, defaults.rank_timing.silence.floor);
  EXPECT_EQ(loaded->rank_timing.registration_max, defaults.rank_timing.registration_max);
  EXPECT_EQ(loaded->ledger.report_lag, defaults.ledger.report_lag);
  EXPECT_EQ(loaded->attempts_max, defaults.attempts_max);
  EXPECT_EQ(loaded->front.tokens_unsent_max, defaults.front.tokens_unsent_max);
  const auto& pool = loaded->pools.at(0).options;
  const auto& wanted = defaults.pools.at(0).options;
  EXPECT_EQ(pool.ranks_max, wanted.ranks_max);
  EXPECT_EQ(pool.policy, wanted.policy);
  EXPECT_EQ(pool.requests_in_flight_max, wanted.requests_in_flight_max);
  EXPECT_EQ(pool.tokens_in_flight_max, wanted.tokens_in_flight_max);
  EXPECT_EQ(pool.slow_start, wanted.slow_start);
  EXPECT_EQ(pool.tuning.headroom_output_share, wanted.tuning.headroom_output_share);
}

TEST(config, what_is_shown_can_be_read_and_shows_the_same) {
  const auto shown = app::effective_config("[node]\ndrain_s = 7.5\n[engine]\nallowed_peers = [\"10.0.0.0/8\"]", "a");
  ASSERT_TRUE(shown);
  EXPECT_NE(shown->find("drain_s = 7.5"), std::string::npos) << *shown;
  const auto again = app::effective_config(*shown, "b");
  ASSERT_TRUE(again) << again.error().front();
  EXPECT_EQ(*again, *shown);
  EXPECT_EQ(app::parse_config(*shown, "c")->allowed_peers, std::vector<std::string>{"10.0.0.0/8"});
}

TEST(config, the_limits_of_floods_are_the_front_s_and_the_reference_shows_their_defaults) {
  const io::grpc::flood_limits defaults;
  const auto shown = app::load_config(REFERENCE_CONFIG)->front.server.floods;
  EXPECT_EQ(shown.ping_interval_min, defaults.ping_interval_min);
  EXPECT_EQ(shown.ping_strikes_max, defaults.ping_strikes_max);
  EXPECT_EQ(shown.unread_frames_max, defaults.unread_frames_max);
  const auto same = [](const io::grpc::frame_allowance& a, const io::grpc::frame_allowance& b) {
    return a.burst == b.burst && a.per_s == b.per_s;
  };
  EXPECT_TRUE(same(shown.control, defaults.control));
  EXPECT_TRUE(same(shown.empty_data, defaults.empty_data));
  EXPECT_TRUE(same(shown.priorities, defaults.priorities));
  EXPECT_TRUE(same(shown.window_updates, defaults.window_updates));
  EXPECT_TRUE(same(shown.resets, defaults.resets));
  const auto set = app::parse_config("[front]\nping_interval_min_ms = 500\nresets_burst = 7\nresets_per_s = 8\n", "f");
  ASSERT_TRUE(set) << set.error().front();
  EXPECT_EQ(set->front.server.floods.ping_interval_min, std::chrono::milliseconds{500});
  EXPECT_TRUE(same(set->front.server.floods.resets, {7, 8}));
  EXPECT_FALSE(app::parse_config("[front]\nresets_burst = 0\n", "f"));
}

TEST(config, an_unknown_key_is_an_error_with_its_line_and_the_known_ones) {
  const auto parsed = app::parse_config("[node]\ngrpc = \"127.0.0.1:1\"\nadmn = \"x\"\n[[pools]]\n", "f.toml");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error(), Contains(StartsWith("f.toml:3: node.admn: unknown key; there are admin, ")));
  EXPECT_THAT(parsed.error(),
              Contains("f.toml:4: pools: unknown key; there are engine, front, load, model, node, pool, "
                       "requests, supervision"));
}

TEST(config, a_value_of_another_type_is_an_error_with_its_line) {
  const auto errors_of = [](const std::string& text) {
    const auto parsed = app::parse_config(text, "f.toml");
    return parsed ? app::config_errors{} : parsed.error();
  };
  EXPECT_THAT(errors_of("[node]\ngrpc = 5\n[[pool]]\nranks = 1.5\n"),
              AllOf(Contains("f.toml:2: node.grpc: must be a string, not 5"),
                    Contains("f.toml:4: pool.ranks: must be a whole number, not 1.5")));
  EXPECT_THAT(errors_of("[node]\nfault_injection = \"yes\"\ngrpc = [1]\nlog_level = \"loud\"\n"),
              AllOf(Contains("f.toml:2: node.fault_injection: must be true or false, not \"yes\""),
                    Contains("f.toml:3: node.grpc: must be a string, not a list"),
                    Contains("f.toml:4: node.log_level: must be one of debug, info, warn, error, off, not \"loud\"")));
  EXPECT_THAT(errors_of("engine = true\npool = 2\n"),
              AllOf(Contains("f.toml:1: engine: must be a table, not true"),
                    Contains("f.toml:2: pool: must be a list of tables, [[pool]], not 2")));
  EXPECT_THAT(errors_of("[node]\ngrpc = { host = \"h\" }\ndrain_s = 1979-05-27\n"),
              AllOf(Contains("f.toml:2: node.grpc: must be a string, not a table"),
                    Contains("f.toml:3: node.drain_s: must be a number, not 1979-05-27")));
}

TEST(config, values_that_do_not_fit_together_are_both_named) {
  const auto parsed = app::parse_config("[node]\nready_max_s = 3\nready_with_fewer_s = 3.5\n"
                                        "[engine]\nheartbeat_interval_ms = 100\nheartbeat_timeout_ms = 50\n"
                                        "[supervision]\nbackoff_min_ms = 3000\nbackoff_max_ms = 2000\n",
                                        "f.toml");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error(),
              AllOf(Contains(HasSubstr("node.ready_with_fewer_s: 3.5 is not less than ready_max_s 3")),
                    Contains(HasSubstr("engine.heartbeat_timeout_ms: 50 is not more than heartbeat_interval_ms 100")),
                    Contains(HasSubstr("supervision.backoff_min_ms: 3000 is more than backoff_max_ms 2000"))));
}

TEST(config, a_value_out_of_range_names_the_range) {
  const auto parsed = app::parse_config("[engine]\nheartbeat_interval_ms = 0\n", "f.toml");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error(), Contains(HasSubstr("0 is not within 10 and 60000")));
}

TEST(config, tls_files_that_do_not_fit_are_refused_by_their_key) {
  const auto error_of = [](const std::string& lines) {
    const auto parsed = app::parse_config("[front]\n" + lines, "f.toml");
    return parsed ? std::string{"accepted"} : parsed.error().front();
  };
  EXPECT_THAT(error_of("tls_certificate = \"/nowhere.pem\"\ntls_key = \"/nowhere.key\"\n"),
              HasSubstr("front.tls_certificate: \"/nowhere.pem\" cannot be read"));
  EXPECT_THAT(error_of("tls_key = \"/nowhere.key\"\n"), HasSubstr("front.tls_key: needs a certificate"));
  EXPECT_THAT(error_of("tls_certificate = \"/nowhere.pem\"\n"), HasSubstr("front.tls_certificate: needs a key"));
  EXPECT_THAT(error_of("tls_client_ca = \"/nowhere.pem\"\n"), HasSubstr("front.tls_client_ca: needs a certificate"));
  EXPECT_EQ(error_of("tls_certificate = \"\"\n"), "accepted");
}

TEST(config, pools_that_do_not_go_together_are_refused) {
  const auto parsed = app::parse_config("[[pool]]\nrole = \"unified\"\n[[pool]]\nrole = \"decode\"\n", "f.toml");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error(), Contains(HasSubstr("a node has one unified pool, or")));
}

TEST(config, what_could_not_work_is_refused_wherever_it_was_set) {
  const auto fault_of = [](auto change) {
    auto config = app::default_config();
    change(config);
    const auto errors = app::check_config(config);
    EXPECT_EQ(errors.size(), 1u);
    return errors.empty() ? std::string{} : errors.front();
  };
  EXPECT_THAT(app::check_config(app::default_config()), testing::IsEmpty());
  EXPECT_THAT(fault_of([](auto& c) { c.grpc = "nonsense"; }), HasSubstr("node.grpc: \"nonsense\" is not host:port"));
  EXPECT_THAT(fault_of([](auto& c) { c.grpc = "127.0.0.1:65536"; }), HasSubstr("node.grpc"));
  EXPECT_THAT(fault_of([](auto& c) { c.admin = "127.0.0.1:"; }), HasSubstr("node.admin"));
  EXPECT_THAT(fault_of([](auto& c) { c.admin = c.grpc; }), HasSubstr("is node.grpc too"));
  EXPECT_THAT(fault_of([](auto& c) { c.admin_token_file = "/nonexistent"; }),
              HasSubstr("node.admin_token_file: \"/nonexistent\" cannot be read"));
  EXPECT_THAT(fault_of([](auto& c) { c.log_level = "loud"; }), HasSubstr("node.log_level: \"loud\""));
  EXPECT_THAT(fault_of([](auto& c) { c.state_dir = std::string(61, 'x'); }), HasSubstr("node.state_dir"));
  EXPECT_THAT(fault_of([](auto& c) { c.restarts.backoff_min = std::chrono::minutes{1}; }), HasSubstr("backoff_min_ms"));
  EXPECT_THAT(fault_of([](auto& c) { c.pools[0].options.policy = "best"; }), HasSubstr("is not one of headroom"));
  EXPECT_THAT(fault_of([](auto& c) { c.pools[0].options.name = ""; }), HasSubstr("pool.name"));
  EXPECT_THAT(fault_of([](auto& c) { c.pools[0].handshake = "tcp://nonsense"; }), HasSubstr("pool.handshake"));
  EXPECT_THAT(fault_of([](auto& c) { c.pools[0].handshake = "tcp://0.0.0.0:0"; }), HasSubstr("no address that ranks"));
}

TEST(config, numbers_of_complaints_have_no_exponents) {
  const auto parsed = app::parse_config("[node]\ndrain_s = 1e20\n[requests]\nrequest_time_max_s = inf\n", "f.toml");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(
      parsed.error(),
      AllOf(Contains("f.toml:2: node.drain_s: must be within 0 and 86400, not 100000000000000000000"),
            Contains(ContainsRegex("requests.request_time_max_s: must be within [0-9.]+ and [0-9]+, not no finite"))));
}

TEST(config, a_folder_is_no_configuration) {
  const auto loaded = app::load_config("/");
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error(), Contains("/: cannot be read"));
}

TEST(config, broken_toml_names_its_line) {
  const auto parsed = app::parse_config("[node]\ngrpc = \n", "f.toml");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error().front(), HasSubstr("f.toml:2"));
}

TEST(demo_faults, every_form_is_read) {
  const auto crash = app::parse_fault("crash:load_forwarder@2s+10s*10");
  ASSERT_TRUE(crash) << crash.error();
  EXPECT_EQ(app::schedule({*crash}).size(), 100U);
  const auto freeze = app::parse_fault("freeze:decode/2@5s+2s");
  ASSERT_TRUE(freeze) << freeze.error();
  const std::vector<app::demo_fault> faults{*freeze};
  const auto actions = app::schedule(faults);
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_DOUBLE_EQ(actions[1].at_s, 7);
}

TEST(demo_faults, what_is_wrong_is_named) {
  for (const auto* text : {"", "burn:decode/1@2s", "kill:decode@2s", "kill:decode/x@2s", "freeze:decode/1@2s",
                           "crash:nobody@1s", "kill:decode/1", "kill:decode/1@soon"}) {
    const auto fault = app::parse_fault(text);
    ASSERT_FALSE(fault) << text;
    EXPECT_THAT(fault.error(), HasSubstr(text));
  }
}

} // namespace
