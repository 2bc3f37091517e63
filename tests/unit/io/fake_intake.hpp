#pragma once

#include "core/request/request_intake.hpp"
#include "core/request/stream_sink.hpp"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

/// Stands where the node would and writes down what the front asks of it; the test plays the engine.
namespace rankwise::testing {

class fake_intake final : public core::request_intake {
 public:
  struct submitted {
    core::stream_id stream = 0;
    core::request_ptr request;
  };

  core::owner_id submit(core::stream_id stream, core::request_ptr request) noexcept override {
    const std::lock_guard lock{mutex_};
    submits_.push_back({stream, std::move(request)});
    changed_.notify_all();
    return owner_;
  }
  void cancel(core::stream_id stream, core::owner_id owner, core::failure why) noexcept override {
    const std::lock_guard lock{mutex_};
    cancelled_at_.push_back(owner);
    cancels_.emplace_back(stream, why);
    changed_.notify_all();
  }
  void abort(std::string rid) noexcept override {
    const std::lock_guard lock{mutex_};
    aborts_.push_back(std::move(rid));
    changed_.notify_all();
  }
  [[nodiscard]] core::node_info info() const override {
    const std::lock_guard lock{mutex_};
    return info_;
  }
  [[nodiscard]] std::vector<core::rank_load> loads() const override {
    const std::lock_guard lock{mutex_};
    return loads_;
  }

  /// Who owns what is submitted from now on.
  void set_owner(core::owner_id owner) {
    const std::lock_guard lock{mutex_};
    owner_ = owner;
  }
  /// Of each cancel, in order.
  std::vector<core::owner_id> cancelled_at() {
    const std::lock_guard lock{mutex_};
    return cancelled_at_;
  }
  void set_info(core::node_info info) {
    const std::lock_guard lock{mutex_};
    info_ = std::move(info);
  }
  void set_loads(std::vector<core::rank_load> loads) {
    const std::lock_guard lock{mutex_};
    loads_ = std::move(loads);
  }

  /// The n-th request (from 0), waited for; a null request when it does not come.
  submitted request(std::size_t n) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, limit, [&] { return submits_.size() > n; });
    return submits_.size() > n ? submits_[n] : submitted{};
  }
  std::vector<std::pair<core::stream_id, core::failure>> cancels(std::size_t wanted,
                                                                 std::chrono::milliseconds for_at_most = limit) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, for_at_most, [&] { return cancels_.size() >= wanted; });
    return cancels_;
  }
  std::vector<std::string> aborts() {
    const std::lock_guard lock{mutex_};
    return aborts_;
  }
  std::size_t submits() {
    const std::lock_guard lock{mutex_};
    return submits_.size();
  }

 private:
  static constexpr std::chrono::milliseconds limit{5000};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<submitted> submits_;
  std::vector<std::pair<core::stream_id, core::failure>> cancels_;
  std::vector<core::owner_id> cancelled_at_;
  std::vector<std::string> aborts_;
  core::owner_id owner_ = 1;
  core::node_info info_;
  std::vector<core::rank_load> loads_;
};

/// Builds the batches that an engine's output would become.
class batch_builder {
 public:
  batch_builder& tokens(core::stream_id stream, std::vector<std::int32_t> tokens, std::uint32_t completion_tokens,
                        std::uint32_t sample = 0, core::finish_reason finish = core::finish_reason::none) {
    core::stream_event event;
    event.stream = stream;
    event.sample = sample;
    event.token_offset = static_cast<std::uint32_t>(batch_.tokens.size());
    event.token_count = static_cast<std::uint32_t>(tokens.size());
    event.prompt_tokens = 3;
    event.cached_tokens = 1;
    event.completion_tokens = completion_tokens;
    event.finish = finish;
    batch_.tokens.insert(batch_.tokens.end(), tokens.begin(), tokens.end());
    batch_.events.push_back(event);
    return *this;
  }
  batch_builder& matched_token(std::int64_t token) {
    batch_.events.back().matched_token = token;
    return *this;
  }
  batch_builder& matched_string(std::string text) {
    batch_.events.back().matched_string_index = static_cast<std::uint32_t>(batch_.matched_strings.size());
    batch_.matched_strings.push_back(std::move(text));
    return *this;
  }
  batch_builder& outcome(core::stream_id stream, core::outcome why) {
    core::stream_event event;
    event.stream = stream;
    event.outcome_index = static_cast<std::uint32_t>(batch_.outcomes.size());
    batch_.events.push_back(event);
    batch_.outcomes.push_back(std::move(why));
    return *this;
  }
  [[nodiscard]] core::stream_batch take() { return std::exchange(batch_, {}); }

 private:
  core::stream_batch batch_;
};

} // namespace rankwise::testing
