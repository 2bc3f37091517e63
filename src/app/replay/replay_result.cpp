#include "app/replay/replay_result.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

namespace rankwise::app {

namespace {

using core::failure;
using core::outcome_kind;

// gRPC's status codes by number.
constexpr std::array<std::string_view, 17> grpc_status_names{
    "ok",        "cancelled",      "unknown",           "invalid_argument",   "deadline_exceeded",
    "not_found", "already_exists", "permission_denied", "resource_exhausted", "failed_precondition",
    "aborted",   "out_of_range",   "unimplemented",     "internal",           "unavailable",
    "data_loss", "unauthenticated"};

std::optional<failure> named_failure(std::string_view message) {
  const std::string_view name = message.substr(0, message.find(':'));
  for (std::uint8_t i = 1; i < core::failure_count; ++i) {
    const auto candidate = static_cast<failure>(i);
    if (core::to_string(candidate) == name) {
      return candidate;
    }
  }
  return std::nullopt;
}

outcome_kind kind_of(failure reason) noexcept {
  switch (reason) {
  case failure::invalid_argument:
  case failure::duplicate_rid:
  case failure::requests_in_flight_max:
  case failure::tokens_in_flight_max:
  case failure::no_rank_available:
  case failure::pinned_rank_unavailable:
  case failure::rank_queue_full:
  case failure::shutting_down:
  case failure::unsupported:
  case failure::request_manager_overloaded:
    return outcome_kind::refused;
  case failure::deadline_exceeded:
  case failure::client_cancelled:
  case failure::aborted_by_request:
  case failure::slow_client:
    return outcome_kind::cancelled;
  case failure::none:
  case failure::rank_lost:
  case failure::tokens_lost:
  case failure::engine_error:
  case failure::engine_aborted:
  case failure::partner_leg_failed:
  case failure::request_manager_restarted:
    return outcome_kind::failed;
  }
  return outcome_kind::failed;
}

} // namespace

void latency_samples::add(const std::vector<float>& seconds) {
  const std::size_t room = samples_max - samples_.size();
  const auto taken = static_cast<std::ptrdiff_t>(std::min(room, seconds.size()));
  samples_.insert(samples_.end(), seconds.begin(), seconds.begin() + taken);
}

double latency_samples::mean() const {
  if (samples_.empty()) {
    return 0;
  }
  return std::accumulate(samples_.begin(), samples_.end(), 0.0) / static_cast<double>(samples_.size());
}

double latency_samples::percentile(double percent) const {
  if (samples_.empty()) {
    return 0;
  }
  const double rank = std::ceil(percent / 100 * static_cast<double>(samples_.size()));
  const auto index = static_cast<std::size_t>(std::clamp(rank - 1, 0.0, static_cast<double>(samples_.size() - 1)));
  std::vector<float> copy = samples_;
  const auto nth = copy.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(copy.begin(), nth, copy.end());
  return static_cast<double>(*nth);
}

stream_outcome classify(int grpc_status, std::string_view message) {
  if (const auto reason = named_failure(message)) {
    return {kind_of(*reason), std::string(core::to_string(*reason))};
  }
  const auto index = static_cast<std::size_t>(grpc_status);
  const std::string_view name = index < grpc_status_names.size() ? grpc_status_names[index] : "unknown";
  return {outcome_kind::failed, "grpc_" + std::string(name)};
}

nlohmann::json to_json(const replay_result& result) {
  nlohmann::json failures = nlohmann::json::object();
  for (const auto& [reason, count] : result.failures) {
    failures[reason] = count;
  }
  return {
      {"requests",
       {{"accepted", result.accepted()},
        {"completed", result.completed},
        {"failed", result.failed},
        {"cancelled", result.cancelled},
        {"refused", result.refused},
        {"lost", result.lost}}},
      {"failures", failures},
      {"tokens", {{"delivered", result.tokens_delivered}, {"wrong", result.tokens_wrong}}},
      {"ttft_s",
       {{"mean", result.ttft.mean()}, {"p50", result.ttft.percentile(50)}, {"p99", result.ttft.percentile(99)}}},
      {"inter_token_s", {{"p50", result.inter_token.percentile(50)}, {"p99", result.inter_token.percentile(99)}}},
      {"ranks", nlohmann::json::array()},
      {"actors", nlohmann::json::array()},
  };
}

std::string summary(const replay_result& r) {
  std::array<char, 1024> text{};
  const double rate = r.elapsed_s > 0 ? static_cast<double>(r.tokens_delivered) / r.elapsed_s : 0;
  std::snprintf(text.data(), text.size(),
                "requests      %llu accepted: %llu completed, %llu failed, %llu cancelled, %llu lost; %llu refused\n"
                "tokens        %llu delivered (%.0f a second), %llu wrong\n"
                "first token   mean %.1f ms, p50 %.1f ms, p99 %.1f ms\n"
                "between them  p50 %.1f ms, p99 %.1f ms\n"
                "time          %.1f s\n",
                static_cast<unsigned long long>(r.accepted()), static_cast<unsigned long long>(r.completed),
                static_cast<unsigned long long>(r.failed), static_cast<unsigned long long>(r.cancelled),
                static_cast<unsigned long long>(r.lost), static_cast<unsigned long long>(r.refused),
                static_cast<unsigned long long>(r.tokens_delivered), rate,
                static_cast<unsigned long long>(r.tokens_wrong), r.ttft.mean() * 1e3, r.ttft.percentile(50) * 1e3,
                r.ttft.percentile(99) * 1e3, r.inter_token.percentile(50) * 1e3, r.inter_token.percentile(99) * 1e3,
                r.elapsed_s);
  std::string result(text.data());
  for (const auto& [reason, count] : r.failures) {
    result += "  " + reason + ": " + std::to_string(count) + "\n";
  }
  if (r.not_sent > 0) {
    result += "  not sent: " + std::to_string(r.not_sent) + "\n";
  }
  if (!r.first_wrong.empty()) {
    result += "  first wrong: " + r.first_wrong + "\n";
  }
  return result;
}

} // namespace rankwise::app
