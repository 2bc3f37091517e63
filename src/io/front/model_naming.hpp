#pragma once

#include "io/front/front_options.hpp"

#include <string>

/// What gateways are told of the model's name and of the folder of its tokenizer.
namespace rankwise::io::front {

/// Where neither the configuration nor the ranks name a model.
inline constexpr const char* model_without_a_name = "rankwise";

struct model_names {
  std::string model_path;
  std::string served_model_name;
  std::string tokenizer_path;
};

/// The configuration first, then `registered`: what the ranks say that they serve (the key `instance_id` of their
/// registration: SGLang's --served-model-name, by default its --model-path); empty = nothing.
[[nodiscard]] model_names names_of(const model_facts& model, const std::string& registered);

/// Empty, or a sentence that says why a gateway may find no tokenizer, what it does then, and which key helps. Looks
/// for `registered` on the file system of this machine.
[[nodiscard]] std::string tokenizer_warning(const model_facts& model, const std::string& registered);

} // namespace rankwise::io::front
