#include "wire/sglang/layouts.hpp"
#include "wire/sglang/output_codec.hpp"
#include "wire/sglang/request_codec.hpp"

#include <benchmark/benchmark.h>

/// Figures per token (or per request) of the codecs that every token passes: items_per_second is tokens a second.
namespace {

namespace sg = rankwise::wire::sglang;

sg::token_output decode_step(std::uint32_t rids) {
  sg::token_output batch;
  for (std::uint32_t i = 0; i < rids; ++i) {
    sg::output_item item;
    item.rid = "chatcmpl-4f1a9c0e-77aa-4c0b-" + std::to_string(i) + "~1z141z3.0";
    item.token_offset = i;
    item.token_count = 1;
    item.prompt_tokens = 1000 + i;
    item.completion_tokens = 300;
    batch.items.push_back(item);
    batch.tokens.push_back(static_cast<std::int32_t>(100'000 + i));
  }
  batch.load = sg::load_tail{rids, 0, 100'000, 1U << 20};
  return batch;
}

void decode_output(benchmark::State& state) {
  const std::string frame = sg::encode_token_output(decode_step(static_cast<std::uint32_t>(state.range(0))));
  for (auto _ : state) {
    benchmark::DoNotOptimize(sg::decode_output(frame));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(decode_output)->Arg(1)->Arg(8)->Arg(64)->Arg(256);

void encode_output(benchmark::State& state) {
  const auto batch = decode_step(static_cast<std::uint32_t>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(sg::encode_token_output(batch));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(encode_output)->Arg(1)->Arg(8)->Arg(64)->Arg(256);

rankwise::core::generate_request request_of(std::int64_t tokens) {
  rankwise::core::generate_request request;
  request.rid = "r1";
  for (std::int64_t i = 0; i < tokens; ++i) {
    request.input_ids.push_back(static_cast<std::int32_t>(i * 7919 % 150'000));
  }
  return request;
}

void encode_add(benchmark::State& state) {
  sg::registration r;
  r.positional_layouts = sg::sglang_0_5_23_layouts();
  const auto layout = sg::request_layout::from_registration(r);
  const auto request = request_of(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(layout->encode_add(request, "r1~1z141z3.0", std::nullopt));
  }
}
BENCHMARK(encode_add)->Arg(128)->Arg(8192);

void decode_add(benchmark::State& state) {
  sg::registration r;
  r.positional_layouts = sg::sglang_0_5_23_layouts();
  const auto payload =
      sg::request_layout::from_registration(r)->encode_add(request_of(state.range(0)), "r1~1.0", std::nullopt);
  const auto decoder = sg::command_decoder::from_registration(r);
  for (auto _ : state) {
    benchmark::DoNotOptimize(decoder->decode(0, payload));
  }
}
BENCHMARK(decode_add)->Arg(128)->Arg(8192);

} // namespace

BENCHMARK_MAIN();
