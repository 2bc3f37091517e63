#include "echo_engine.hpp"

#include <zlib.h>

#include <algorithm>

namespace rankwise::testing {

namespace {

std::uint32_t sum_of(const std::string& text) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

core::stream_batch ended(core::stream_id stream, core::outcome why) {
  core::stream_batch batch;
  core::stream_event event;
  event.stream = stream;
  event.outcome_index = 0;
  batch.events.push_back(event);
  batch.outcomes.push_back(std::move(why));
  return batch;
}

} // namespace

echo_engine::echo_engine(echo_options options) : options_(std::move(options)) {}

echo_engine::~echo_engine() {
  stop();
}

void echo_engine::start(core::stream_sink& sink) {
  sink_ = &sink;
  thread_ = std::thread{[this] { run(); }};
}

void echo_engine::stop() {
  {
    const std::lock_guard lock{mutex_};
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

core::owner_id echo_engine::submit(core::stream_id stream, core::request_ptr request) noexcept {
  constexpr core::owner_id owner = 1;
  running r;
  r.stream = stream;
  for (std::uint32_t s = 0; s < request->samples; ++s) {
    r.sums.push_back(sum_of(request->samples == 1 ? request->rid : request->rid + "-" + std::to_string(s)));
  }
  r.request = std::move(request);
  const std::lock_guard lock{mutex_};
  const bool duplicate =
      std::any_of(open_.begin(), open_.end(), [&](const running& o) { return o.request->rid == r.request->rid; });
  if (duplicate) {
    unsent_.push_back(ended(stream, {core::outcome_kind::refused, core::failure::duplicate_rid,
                                     "request_id: " + r.request->rid + " is in flight", 0}));
    return owner;
  }
  open_.push_back(std::move(r));
  return owner;
}

void echo_engine::cancel(core::stream_id stream, core::owner_id, core::failure) noexcept {
  cancels_.fetch_add(1);
  const std::lock_guard lock{mutex_};
  std::erase_if(open_, [&](const running& r) { return r.stream == stream; });
}

void echo_engine::abort(std::string rid) noexcept {
  const std::lock_guard lock{mutex_};
  for (const auto& r : open_) {
    if (r.request->rid == rid) {
      unsent_.push_back(
          ended(r.stream, {core::outcome_kind::cancelled, core::failure::aborted_by_request, "Abort was called", 0}));
    }
  }
  std::erase_if(open_, [&](const running& r) { return r.request->rid == rid; });
}

core::node_info echo_engine::info() const {
  core::node_info out;
  out.ready = true;
  out.dp_size = options_.dp_size;
  out.max_total_num_tokens = std::uint64_t{100'000} * options_.dp_size;
  out.max_running_requests = 256;
  out.max_model_len = 1'000'000;
  out.engine_version = options_.engine_version;
  out.disaggregation_mode = options_.disaggregation_mode;
  const std::lock_guard lock{mutex_};
  out.requests_in_flight = static_cast<std::uint32_t>(open_.size());
  return out;
}

std::vector<core::rank_load> echo_engine::loads() const {
  std::vector<core::rank_load> out;
  const std::lock_guard lock{mutex_};
  for (std::uint16_t rank = 0; rank < options_.dp_size; ++rank) {
    core::rank_load load;
    load.rank = {0, rank};
    load.num_running = static_cast<std::uint32_t>(open_.size()) / options_.dp_size;
    load.kv_used_tokens = std::uint64_t{1000} * rank;
    load.kv_total_tokens = 100'000;
    load.max_running_requests = 256;
    load.report_age_s = 0.01;
    out.push_back(load);
  }
  return out;
}

void echo_engine::run() {
  auto next = std::chrono::steady_clock::now();
  for (;;) {
    next += options_.step;
    {
      std::unique_lock lock{mutex_};
      if (stopping_.wait_until(lock, next, [this] { return stop_; })) {
        return;
      }
    }
    step();
  }
}

void echo_engine::step() {
  std::vector<core::stream_batch> batches;
  {
    const std::lock_guard lock{mutex_};
    batches.swap(unsent_);
    std::size_t in_batch = options_.streams_per_batch;
    for (auto& r : open_) {
      if (in_batch == options_.streams_per_batch) {
        batches.emplace_back();
        in_batch = 0;
      }
      ++in_batch;
      auto& batch = batches.back();
      const auto limit = static_cast<std::uint32_t>(r.request->sampling.max_new_tokens);
      for (std::uint32_t s = 0; s < r.sums.size(); ++s) {
        core::stream_event event;
        event.stream = r.stream;
        event.sample = s;
        event.token_offset = static_cast<std::uint32_t>(batch.tokens.size());
        event.token_count = limit > 0 ? 1 : 0;
        event.prompt_tokens = static_cast<std::uint32_t>(r.request->input_ids.size());
        event.completion_tokens = limit > 0 ? r.next + 1 : 0;
        event.finish = r.next + 1 >= limit ? core::finish_reason::length : core::finish_reason::none;
        if (limit > 0) {
          batch.tokens.push_back(static_cast<std::int32_t>((r.sums[s] + r.next) % 94));
        }
        batch.events.push_back(event);
      }
      ++r.next;
    }
    std::erase_if(open_, [](const running& r) {
      return r.next >= static_cast<std::uint32_t>(std::max(r.request->sampling.max_new_tokens, 1));
    });
  }
  for (auto& batch : batches) {
    sink_->deliver(std::move(batch));
  }
}

} // namespace rankwise::testing
