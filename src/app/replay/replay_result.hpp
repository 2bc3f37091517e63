#pragma once

#include "core/base/outcome.hpp"

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

/// What a replayed workload came to, as its client saw it.
namespace rankwise::app {

/// Seconds. Exact: all samples are kept and the p-th percentile is the smallest sample that at least p percent do not
/// exceed (nearest rank); no interpolation.
class latency_samples {
 public:
  void add(double seconds) {
    if (samples_.size() < samples_max) {
      samples_.push_back(static_cast<float>(seconds));
    }
  }
  void add(const std::vector<float>& seconds);
  [[nodiscard]] std::size_t count() const noexcept { return samples_.size(); }
  [[nodiscard]] double mean() const;
  /// 0 when there is no sample. `percent` from 0 to 100.
  [[nodiscard]] double percentile(double percent) const;

 private:
  static constexpr std::size_t samples_max = 64'000'000; ///< 256 MB; what comes later is left out
  std::vector<float> samples_;
};

/// How one request ended for the client.
struct stream_outcome {
  core::outcome_kind kind = core::outcome_kind::completed;
  std::string
      reason; ///< name of a core::failure, or of the gRPC status when the server gave none; empty when completed
};

/// `message` is what the server said: a node puts the failure's name and a colon in front. A status without such a name
/// is failed("grpc_<status name>").
[[nodiscard]] stream_outcome classify(int grpc_status, std::string_view message);

struct replay_result {
  // requests: accepted + refused = all; accepted = completed + failed + cancelled + lost
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t refused = 0;
  std::uint64_t lost =
      0; ///< no outcome: the stream ended well without a completion, or fell silent for longer than the limit
  std::map<std::string, std::uint64_t> failures; ///< reasons of failed, cancelled and refused requests
  std::uint64_t tokens_delivered = 0;
  /// Tokens of another value than expected, missing or surplus ones, and counts or a completion that contradict them.
  std::uint64_t tokens_wrong = 0;
  std::string first_wrong;     ///< what the first of them was, for people
  latency_samples ttft;        ///< from the time at which the request was due to its first token
  latency_samples inter_token; ///< between two messages of one stream that bring tokens, however many each brings
  latency_samples send_lag;    ///< from the time at which a request was due to the sending
  double elapsed_s = 0;
  std::uint64_t not_sent = 0; ///< stopped before their turn

  [[nodiscard]] std::uint64_t accepted() const noexcept { return completed + failed + cancelled + lost; }
  /// Nothing lost, no token wrong.
  [[nodiscard]] bool holds() const noexcept { return lost == 0 && tokens_wrong == 0; }
};

/// {requests: {accepted, completed, failed, cancelled, refused, lost}, failures: {reason: n}, tokens: {delivered,
/// wrong}, ttft_s: {mean, p50, p99}, inter_token_s: {p50, p99}, ranks: [], actors: []}: the last two are for whoever
/// knows them.
[[nodiscard]] nlohmann::json to_json(const replay_result& result);

/// A few lines for people.
[[nodiscard]] std::string summary(const replay_result& result);

} // namespace rankwise::app
