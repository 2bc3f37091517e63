#include "sim/random.hpp"

#include <array>
#include <gtest/gtest.h>
#include <vector>

namespace rankwise::sim {
namespace {

template <class Draw>
std::pair<double, double> mean_and_variance(Draw draw) {
  constexpr int draws = 200'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < draws; ++i) {
    const double x = draw();
    sum += x;
    squares += x * x;
  }
  const double mean = sum / draws;
  return {mean, squares / draws - mean * mean};
}

TEST(random_test, the_same_seed_gives_the_same_numbers_on_every_machine) {
  random_source random(5489); // the standard's own check: the 10000th value of a default-seeded mt19937_64
  std::uint64_t last = 0;
  for (int i = 0; i < 10'000; ++i) {
    last = random.bits();
  }
  EXPECT_EQ(last, 9981545732273789042ULL);
}

TEST(random_test, distributions_have_their_mean_and_variance) {
  random_source random(7);
  const auto near = [](std::pair<double, double> got, double mean, double variance) {
    EXPECT_NEAR(got.first, mean, 0.03 * std::max(1.0, mean));
    EXPECT_NEAR(got.second, variance, 0.06 * std::max(1.0, variance));
  };
  near(mean_and_variance([&] { return random.uniform(2, 4); }), 3, 1.0 / 3);
  near(mean_and_variance([&] { return random.exponential(2); }), 2, 4);
  near(mean_and_variance([&] { return random.normal(1, 2); }), 1, 4);
  near(mean_and_variance([&] { return random.gamma(3, 2); }), 6, 12);
  near(mean_and_variance([&] { return random.gamma(0.5, 2); }), 1, 2);
  near(mean_and_variance([&] { return random.weibull(1, 2); }), 2, 4); // shape 1 is the exponential
}

TEST(random_test, weights_are_followed) {
  random_source random(7);
  const std::vector<double> cumulative{1, 1, 4};
  std::array<int, 3> counts{};
  for (int i = 0; i < 40'000; ++i) {
    ++counts.at(random.pick(cumulative));
  }
  EXPECT_NEAR(counts[0], 10'000, 500);
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[2], 30'000, 500);
}

} // namespace
} // namespace rankwise::sim
