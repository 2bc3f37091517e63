#pragma once

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace rankwise::app {

/// Passes log lines on to another sink, of each kind (`event=KIND ...`) at most so many a second. What is left out is
/// said: `event=log_suppressed kind=KIND lines=N`, with the next line of that kind that gets through.
class limited_log_sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  limited_log_sink(std::shared_ptr<spdlog::sinks::sink> target, std::uint32_t lines_per_s_max)
      : target_(std::move(target)), lines_per_s_max_(lines_per_s_max) {}

  /// The word behind "event="; empty: the line has none.
  [[nodiscard]] static std::string_view kind_of(std::string_view line) noexcept {
    constexpr std::string_view key = "event=";
    if (!line.starts_with(key))
      return {};
    line.remove_prefix(key.size());
    return line.substr(0, line.find(' '));
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view line{message.payload.data(), message.payload.size()};
    const auto kind = std::string{kind_of(line)};
    if (kinds_.size() >= kinds_max && !kinds_.contains(kind))
      kinds_.clear(); // kinds are words of the program: there are never so many
    auto& k = kinds_[kind];
    if (message.time - k.second_began >= std::chrono::seconds{1} || message.time < k.second_began) {
      k.second_began = message.time;
      k.lines = 0;
    }
    if (k.lines >= lines_per_s_max_) {
      ++k.suppressed;
      return;
    }
    ++k.lines;
    if (const auto suppressed = std::exchange(k.suppressed, 0); suppressed > 0) {
      const auto text = fmt::format("event=log_suppressed kind={} lines={}", kind, suppressed);
      spdlog::details::log_msg note{message.time, message.source, message.logger_name, spdlog::level::warn, text};
      target_->log(note);
    }
    target_->log(message);
  }
  void flush_() override { target_->flush(); }
  void set_pattern_(const std::string& pattern) override { target_->set_pattern(pattern); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    target_->set_formatter(std::move(formatter));
  }

 private:
  static constexpr std::size_t kinds_max = 1000;
  struct kind_state {
    spdlog::log_clock::time_point second_began{};
    std::uint32_t lines = 0;
    std::uint64_t suppressed = 0;
  };
  std::shared_ptr<spdlog::sinks::sink> target_;
  std::uint32_t lines_per_s_max_;
  std::map<std::string, kind_state> kinds_;
};

} // namespace rankwise::app
