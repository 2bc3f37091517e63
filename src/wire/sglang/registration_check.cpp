#include "wire/sglang/registration_check.hpp"

#include <limits>
#include <string_view>

namespace rankwise::wire::sglang {

namespace {

std::string said(std::string_view field, std::uint64_t value) {
  return std::string{field} + " " + std::to_string(value);
}

/// Empty when the value is in its range.
std::string out_of_range(std::string_view field, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most)
    return {};
  return said(field, value) + ": must be from " + std::to_string(least) + " to " + std::to_string(most);
}

std::string numbers(const engine_place& place) {
  return std::to_string(place.first()) + " to " + std::to_string(place.end() - 1);
}

} // namespace

std::string fault_of(const registration& r, std::uint16_t rank, std::uint16_t ranks_max) {
  constexpr std::uint64_t requests_max = std::numeric_limits<std::int32_t>::max(); // as gateways are told of it
  if (auto fault = out_of_range("kv_cache_size_tokens", r.kv_cache_size_tokens, 1, registered_tokens_max);
      !fault.empty())
    return fault;
  if (auto fault = out_of_range("max_num_seqs", r.max_num_seqs, 1, requests_max); !fault.empty())
    return fault;
  if (auto fault = out_of_range("max_num_batched_tokens", r.max_num_batched_tokens, 0, registered_tokens_max);
      !fault.empty())
    return fault;
  if (auto fault = out_of_range("max_model_len", r.max_model_len, 1, registered_tokens_max); !fault.empty())
    return fault;
  if (auto fault = out_of_range("data_parallel_size", r.data_parallel_size, 1, ranks_max); !fault.empty())
    return fault + ", the ranks_max of the pool";
  if (auto fault = out_of_range("data_parallel_rank", r.data_parallel_rank, 0, r.data_parallel_size - 1);
      !fault.empty())
    return fault + " beside data_parallel_size " + std::to_string(r.data_parallel_size);
  if (r.data_parallel_rank > rank)
    return said("data_parallel_rank", r.data_parallel_rank) + ": must be from 0 to " + std::to_string(rank) +
           " under the identity " + std::to_string(rank);
  const engine_place place{rank, r.data_parallel_rank, r.data_parallel_size};
  if (place.end() > ranks_max)
    return said("data_parallel_size", r.data_parallel_size) + ": its engine would have the ranks " + numbers(place) +
           ", and the ranks_max of the pool is " + std::to_string(ranks_max);
  return {};
}

std::string contradiction(const engine_place& rank, const engine_place& registered) {
  const bool apart = rank.end() <= registered.first() || registered.end() <= rank.first();
  const bool same = rank.first() == registered.first() && rank.end() == registered.end();
  if (apart || same)
    return {};
  const auto who = [](const engine_place& p) { return "rank " + std::to_string(p.rank) + " says "; };
  if (rank.first() == registered.first())
    return who(rank) + said("data_parallel_size", rank.data_parallel_size) + ", " + who(registered) +
           std::to_string(registered.data_parallel_size);
  const auto whole = [&](const engine_place& p) {
    return who(p) + said("data_parallel_rank", p.data_parallel_rank) + " of " +
           said("data_parallel_size", p.data_parallel_size) + ", so that its engine has the ranks " + numbers(p);
  };
  return whole(rank) + "; " + whole(registered);
}

} // namespace rankwise::wire::sglang
