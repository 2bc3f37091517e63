#include "app/node/limited_log_sink.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

namespace {

using namespace rankwise;
using testing::HasSubstr;

TEST(limited_log_sink, lets_so_many_lines_of_a_kind_through_and_tells_what_it_left_out) {
  std::ostringstream out;
  auto sink = std::make_shared<app::limited_log_sink>(std::make_shared<spdlog::sinks::ostream_sink_st>(out), 3);
  sink->set_pattern("%v");
  spdlog::log_clock::time_point at{std::chrono::seconds{100}};
  const auto say = [&](std::string_view text) {
    sink->log(spdlog::details::log_msg{at, {}, "", spdlog::level::warn, text});
  };
  for (int i = 0; i < 10; ++i)
    say("event=noisy n=" + std::to_string(i));
  say("event=other n=0");
  say("event=noisy n=10");
  EXPECT_EQ(out.str(), "event=noisy n=0\nevent=noisy n=1\nevent=noisy n=2\nevent=other n=0\n");
  out.str("");
  at += std::chrono::seconds{1};
  say("event=noisy n=11");
  EXPECT_EQ(out.str(), "event=log_suppressed kind=noisy lines=8\nevent=noisy n=11\n");
}

} // namespace
