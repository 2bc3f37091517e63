#include "io/front/model_naming.hpp"

#include <filesystem>
#include <system_error>

namespace rankwise::io::front {

namespace {

const std::string& first_of(const std::string& a, const std::string& b) {
  return a.empty() ? b : a;
}

} // namespace

model_names names_of(const model_facts& model, const std::string& registered) {
  model_names names;
  names.model_path = first_of(model.model_path, registered.empty() ? model_without_a_name : registered);
  names.served_model_name = first_of(model.served_model_name, first_of(registered, names.model_path));
  names.tokenizer_path = first_of(model.tokenizer_path, names.model_path);
  return names;
}

std::string tokenizer_warning(const model_facts& model, const std::string& registered) {
  if (!model.model_path.empty() || !model.tokenizer_path.empty())
    return {};
  std::error_code unreadable;
  if (!registered.empty() && std::filesystem::is_directory(registered, unreadable))
    return {};
  const auto said = registered.empty() ? std::string{"no rank has said what it serves"}
                                       : "the ranks serve \"" + registered + "\", which is no folder here";
  return "model.model_path is not set and " + said +
         ": a gateway that finds no tokenizer there answers every request with 503 tokenizer_load_failed; set "
         "--model-path (model.model_path) to the model's folder, as the gateway's machine has it";
}

} // namespace rankwise::io::front
