#include "sim/step_fit.hpp"

#include "sim/built_in_workloads.hpp"
#include "sim/pool_simulation.hpp"
#include "sim/random.hpp"

#include <gtest/gtest.h>

namespace rankwise::sim {
namespace {

constexpr step_time_constants known{12e-3, 0.4e-3, 0.09e-6, 0.06e-3};

measured_step step_of(const step_time_constants& c, std::uint64_t requests, std::uint64_t kv, std::uint64_t prefill,
                      double noise = 1) {
  return {c.seconds(requests, kv, prefill) * noise, requests, kv, prefill};
}

/// Batches of all kinds, each step longer or shorter by up to `noise`.
std::vector<measured_step> rows(const step_time_constants& c, std::size_t count, double noise, bool prefills = true) {
  random_source random{7};
  std::vector<measured_step> result;
  for (std::size_t i = 0; i < count; ++i) {
    const auto requests = random.below(100);
    const auto kv = requests * (200 + random.below(3000));
    const auto prefill = prefills && random.below(3) == 0 ? random.below(8192) : 0;
    result.push_back(step_of(c, requests, kv, prefill, random.uniform(1 - noise, 1 + noise)));
  }
  return result;
}

void expect_near(const step_time_constants& c, const step_time_constants& wanted, double share) {
  EXPECT_NEAR(c.base_s, wanted.base_s, share * wanted.base_s);
  EXPECT_NEAR(c.per_request_s, wanted.per_request_s, share * wanted.per_request_s);
  EXPECT_NEAR(c.per_kv_token_s, wanted.per_kv_token_s, share * wanted.per_kv_token_s);
  EXPECT_NEAR(c.per_prefill_token_s, wanted.per_prefill_token_s, share * wanted.per_prefill_token_s);
}

TEST(step_fit, rows_made_from_known_constants_give_them_back) {
  const auto fit = fit_step_time(rows(known, 200, 0));
  expect_near(fit.constants, known, 1e-9);
  EXPECT_EQ(fit.steps, 200U);
  EXPECT_LT(fit.error_rms_s, 1e-12);
  EXPECT_LT(fit.error_mean_share, 1e-9);
  for (const auto source : fit.sources)
    EXPECT_EQ(source, constant_source::fitted);
}

TEST(step_fit, with_noise_of_5_percent_they_come_back_within_a_few_percent_and_the_error_says_the_noise) {
  const auto fit = fit_step_time(rows(known, 20'000, 0.05));
  expect_near(fit.constants, known, 0.04);
  EXPECT_NEAR(fit.error_mean_share, 0.025, 0.005) << "half of the most, on average";
  EXPECT_GT(fit.error_rms_s, 1e-3);
}

TEST(step_fit, what_no_step_has_keeps_its_default_and_the_others_are_fitted) {
  const step_time_constants defaults{1, 2, 3, 4};
  const auto fit = fit_step_time(rows(known, 500, 0, false), defaults);
  auto wanted = known;
  wanted.per_prefill_token_s = 4;
  expect_near(fit.constants, wanted, 1e-9);
  EXPECT_EQ(fit.sources[3], constant_source::kept_none);
  EXPECT_EQ(fit.sources[0], constant_source::fitted);
}

TEST(step_fit, what_always_comes_in_proportion_keeps_its_default_and_the_rest_is_fitted_to_what_that_leaves) {
  std::vector<measured_step> steps; // one request each time: base and request cannot be told apart
  for (std::uint64_t kv = 100; kv < 2000; kv += 100)
    steps.push_back(step_of(known, 1, kv, kv % 700));
  const auto fit = fit_step_time(steps, {1, 0.3e-3, 1, 1});
  EXPECT_EQ(fit.sources[1], constant_source::kept_mixed);
  EXPECT_EQ(fit.constants.per_request_s, 0.3e-3);
  EXPECT_NEAR(fit.constants.base_s, known.base_s + known.per_request_s - 0.3e-3, 1e-9);
  EXPECT_NEAR(fit.constants.per_kv_token_s, known.per_kv_token_s, 1e-12);
  EXPECT_LT(fit.error_rms_s, 1e-9);
}

TEST(step_fit, a_constant_that_would_be_negative_is_0_and_the_others_are_the_best_with_that) {
  auto steps = rows({10e-3, 0.5e-3, 0, 0.1e-3}, 500, 0);
  for (auto& s : steps)
    s.seconds -= 1e-9 * static_cast<double>(s.kv_tokens); // the more KV, the faster: nonsense of a measurement
  const auto fit = fit_step_time(steps);
  EXPECT_EQ(fit.sources[2], constant_source::zero);
  EXPECT_EQ(fit.constants.per_kv_token_s, 0);
  // Better than any neighbour without negative constants.
  const auto error = [&](const step_time_constants& c) {
    double sum = 0;
    for (const auto& s : steps) {
      const double e = c.seconds(s.decoding_requests, s.kv_tokens, s.prefill_tokens) - s.seconds;
      sum += e * e;
    }
    return sum;
  };
  for (double step_time_constants::*field :
       {&step_time_constants::base_s, &step_time_constants::per_request_s, &step_time_constants::per_kv_token_s,
        &step_time_constants::per_prefill_token_s})
    for (const double by : {-1e-3, 1e-3}) {
      auto c = fit.constants;
      c.*field += c.*field == 0 ? 1e-10 : by * c.*field;
      EXPECT_GE(error(c), error(fit.constants));
    }
}

TEST(step_fit, one_step_tells_one_constant_and_none_tells_none) {
  const step_time_constants defaults{1e-3, 1e-4, 1e-7, 1e-5};
  const std::vector<measured_step> one{{0.05, 10, 5000, 100}};
  const auto fit = fit_step_time(one, defaults);
  EXPECT_EQ(fit.sources[0], constant_source::fitted);
  EXPECT_EQ(fit.constants.per_request_s, 1e-4);
  EXPECT_NEAR(fit.constants.seconds(10, 5000, 100), 0.05, 1e-12);
  EXPECT_EQ(fit_step_time({}, defaults).constants.base_s, 1e-3);
}

TEST(step_fit, steps_that_the_simulator_took_are_fitted_back_to_its_constants) {
  for (const bool lockstep : {false, true}) {
    simulation_options o;
    o.lockstep = lockstep;
    o.engine.step_time = known;
    o.record_steps = true;
    mixed_workload_options mix;
    mix.requests = 500;
    const auto r = simulate(mixed_workload(mix), o);
    ASSERT_EQ(r.recorded_steps.size(), r.steps);
    const auto read = parse_steps(steps_csv(r.recorded_steps), "steps.csv");
    ASSERT_TRUE(read);
    const auto fit = fit_step_time(*read);
    expect_near(fit.constants, known, 1e-4); // they are written in nanoseconds
    EXPECT_LT(fit.error_rms_s, 1e-8);
    o.record_steps = false;
    const auto without = simulate(mixed_workload(mix), o);
    EXPECT_TRUE(without.recorded_steps.empty());
    EXPECT_EQ(without.event_hash, r.event_hash) << "looking changes nothing";
  }
}

TEST(step_fit, a_file_is_read_and_its_errors_name_line_field_and_value) {
  const std::string head = "seconds,decoding_requests,kv_tokens,prefill_tokens\n";
  const auto read = parse_steps(head + "0.05,3,1000,0\r\n\n0.9,0,0,8192", "s.csv");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, (std::vector<measured_step>{{0.05, 3, 1000, 0}, {0.9, 0, 0, 8192}}));
  const auto error_of = [&](const std::string& text) { return to_string(parse_steps(text, "s.csv").error()); };
  EXPECT_EQ(error_of("a,b\n"), "s.csv:1: \"a,b\" is not the header seconds,decoding_requests,kv_tokens,prefill_tokens");
  EXPECT_EQ(error_of(head), "s.csv: holds no step");
  EXPECT_EQ(error_of(head + "1,2,3\n"), "s.csv:2: \"1,2,3\" has 3 columns instead of 4");
  EXPECT_EQ(error_of(head + "1,2,3,4\n-1,2,3,4\n"), "s.csv:3: seconds: \"-1\" is not a number from 0 to 1000000000");
  EXPECT_EQ(error_of(head + "0,2,3,4\n"), "s.csv:2: seconds: \"0\" is not above 0");
  EXPECT_EQ(error_of(head + "nan,2,3,4\n"), "s.csv:2: seconds: \"nan\" is not a number from 0 to 1000000000");
  EXPECT_EQ(error_of(head + "1,2.5,3,4\n"),
            "s.csv:2: decoding_requests: \"2.5\" is not a whole number from 0 to 1099511627776");
  EXPECT_EQ(error_of(head + "1,2,x,4\n"), "s.csv:2: kv_tokens: \"x\" is not a whole number from 0 to 1099511627776");
  EXPECT_EQ(error_of(head + "1,2,3,\n"), "s.csv:2: prefill_tokens: is not a whole number from 0 to 1099511627776");
  EXPECT_NE(to_string(load_steps("/no/such/steps").error()).find("/no/such/steps"), std::string::npos);
}

} // namespace
} // namespace rankwise::sim
