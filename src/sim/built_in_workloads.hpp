#pragma once

#include "sim/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tl/expected.hpp>

/// Workloads drawn by chance, for whoever has no trace. Invented, not measured. The same options give the same requests
/// on every machine.
namespace rankwise::sim {

struct mixed_workload_options {
  std::size_t requests = 1000;
  double requests_per_s = 20; ///< Poisson arrivals
  std::uint64_t seed = 1;
  std::uint32_t input_tokens_max = 32'768;
  std::uint32_t output_tokens_max = 2048;
};

/// Lengths far apart, which is what makes placement hard: 60 % chat (about 500 tokens in, 200 out), 20 % documents
/// (8,000 in, 150 out), 15 % short calls (50 in, 20 out), 5 % reasoning (300 in, 1,200 out), each spread log-normally.
/// A third of the chats and documents begin with one of eight shared prompts.
[[nodiscard]] workload mixed_workload(const mixed_workload_options& options);

struct giants_workload_options {
  mixed_workload_options mix;
  std::size_t every = 100; ///< one request of so many is a giant; > 0
  std::uint32_t giant_tokens = 100'000;
};

/// The mix, in which every so many requests one has a prompt that keeps a rank busy for seconds.
[[nodiscard]] workload giants_workload(const giants_workload_options& options);

struct shared_prompts_workload_options {
  std::size_t requests = 1000;
  double requests_per_s = 20; ///< Poisson arrivals
  std::uint64_t seed = 1;
  std::uint32_t prompts = 16;           ///< system prompts; the i-th is 1/i as frequent as the first
  std::uint32_t prompt_blocks_max = 16; ///< the system prompts are 1 to so many blocks of 512 tokens long
};

/// Chats of many applications, each with its own system prompt before what the user says (about 300 tokens, 200 out).
[[nodiscard]] workload shared_prompts_workload(const shared_prompts_workload_options& options);

struct agents_workload_options {
  std::size_t requests = 1000; ///< turns of all sessions
  double requests_per_s = 20;  ///< sessions begin by chance (Poisson), so often that their turns come to about that
  std::uint64_t seed = 1;
  double think_s = 2;      ///< mean time (exponential) from the end of a turn to the next one: tools run
  std::uint32_t turns = 8; ///< mean of a session, 1 to twice as many less one; > 0
  std::uint32_t input_tokens_max = 32'768; ///< a session whose next prompt would be longer ends
};

/// Sessions with growing context: the prompt of a turn is the prompt before, its output and a new part (about 800
/// tokens), so that a rank which computed the turn before has nearly all of it. Each begins with one of four system
/// prompts of 2,048 tokens and about 1,500 tokens of its own. Turns answer with about 150 tokens.
[[nodiscard]] workload agents_workload(const agents_workload_options& options);

struct closed_loop_workload_options {
  mixed_workload_options mix; ///< what is asked; its `requests_per_s` means nothing here
  std::uint32_t clients = 64; ///< > 0
  double think_s = 2;         ///< mean time (exponential) from the end of a client's request to its next one
};

/// A fixed number of clients, each with one request at a time, so that a slow pool gets fewer requests a second. What
/// the clients ask and how long they think is drawn beforehand: it is the same for every policy.
[[nodiscard]] workload closed_loop_workload(const closed_loop_workload_options& options);

// -- by name
// --------------------------------------------------------------------------------------------------------------

/// What a command line says of a built-in workload.
struct built_in_choice {
  std::size_t requests = 1000;
  double requests_per_s = 20;
  std::uint64_t seed = 1;
  std::size_t giant_every = 100;
  std::uint32_t clients = 64;
  std::optional<double> think_s; ///< unset: the workload's own
};

inline constexpr std::string_view built_in_workload_names[] = {"mixed", "giants", "shared-prompts", "agents",
                                                               "closed-loop"};

/// nullopt: none has that name.
[[nodiscard]] std::optional<workload> built_in_workload(std::string_view name, const built_in_choice& choice);

} // namespace rankwise::sim
