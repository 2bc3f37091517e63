#include "sim/workload.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace rankwise::sim {

workload limited(workload whole, const workload_limits& limits) {
  for (workload_request& request : whole.requests) {
    request.arrival_s /= limits.speed;
    request.think_s /= limits.speed;
  }
  std::erase_if(whole.requests, [&](const workload_request& r) { return r.arrival_s >= limits.duration_s; });
  if (whole.requests.size() > limits.requests) {
    whole.requests.resize(limits.requests);
  }
  return whole;
}

request_followers::request_followers(const workload& load) {
  const auto& requests = load.requests;
  begins_.assign(requests.size() + 1, 0);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].after) {
      continue;
    }
    if (*requests[i].after >= i) {
      throw std::invalid_argument("request " + std::to_string(i) + " of the workload: after: " +
                                  std::to_string(*requests[i].after) + " is not an earlier request");
    }
    ++begins_[*requests[i].after + 1];
  }
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  followers_.resize(begins_.back());
  auto next = begins_;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].after) {
      followers_[next[*requests[i].after]++] = static_cast<std::uint32_t>(i);
    }
  }
}

std::string to_string(const workload_error& error) {
  std::string text = error.file;
  if (error.line > 0) {
    text += ":" + std::to_string(error.line);
  }
  text += ": ";
  if (!error.field.empty()) {
    text += error.field + ": ";
  }
  if (!error.value.empty()) {
    text += "\"" + error.value + "\" ";
  }
  return text + error.message;
}

} // namespace rankwise::sim
