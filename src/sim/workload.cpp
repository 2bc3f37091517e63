#include "sim/workload.hpp"

#include "sim/random.hpp"

#include <algorithm>
#include <array>

namespace rankwise::sim {

namespace {

struct length_class {
  double share;
  double input_median;
  double input_sigma;
  double output_median;
  double output_sigma;
  bool may_share_prefix;
};

constexpr std::array mixed_classes{
    length_class{0.60, 500, 0.8, 200, 0.7, true}, length_class{0.20, 8000, 0.5, 150, 0.6, true},
    length_class{0.15, 50, 0.6, 20, 0.5, false}, length_class{0.05, 300, 0.6, 1200, 0.5, false}};
constexpr std::uint64_t shared_prompts = 8;
constexpr std::uint64_t own_blocks_from = 1U << 20;

std::uint32_t draw_length(random_source& random, double median, double sigma, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::clamp(random.lognormal(median, sigma), 1.0, static_cast<double>(most)));
}

const length_class& draw_class(random_source& random) {
  double at = random.uniform();
  for (const length_class& c : mixed_classes) {
    if (at < c.share) {
      return c;
    }
    at -= c.share;
  }
  return mixed_classes.front();
}

} // namespace

workload limited(workload whole, const workload_limits& limits) {
  for (workload_request& request : whole.requests) {
    request.arrival_s /= limits.speed;
  }
  std::erase_if(whole.requests, [&](const workload_request& r) { return r.arrival_s >= limits.duration_s; });
  if (whole.requests.size() > limits.requests) {
    whole.requests.resize(limits.requests);
  }
  return whole;
}

workload mixed_workload(const mixed_workload_options& options) {
  random_source random(options.seed);
  workload result;
  result.name = "built-in mixed lengths";
  result.requests.reserve(options.requests);
  double at = 0;
  for (std::size_t i = 0; i < options.requests; ++i) {
    const length_class& c = draw_class(random);
    workload_request request;
    request.arrival_s = at;
    request.input_tokens = draw_length(random, c.input_median, c.input_sigma, options.input_tokens_max);
    request.output_tokens = draw_length(random, c.output_median, c.output_sigma, options.output_tokens_max);
    if (c.may_share_prefix && random.below(3) == 0) {
      const std::uint64_t prompt = random.below(shared_prompts);
      const std::size_t blocks = (request.input_tokens + result.block_tokens - 1) / result.block_tokens;
      // The shared prompts are one to eight blocks long; what follows is the request's own.
      for (std::size_t block = 0; block < blocks; ++block) {
        request.prefix_blocks.push_back(block <= prompt ? prompt * 16 + block : own_blocks_from + (i << 16) + block);
      }
    }
    result.requests.push_back(std::move(request));
    at += random.exponential(1 / options.requests_per_s);
  }
  return result;
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
