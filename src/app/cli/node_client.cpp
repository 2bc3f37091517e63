#include "app/cli/node_client.hpp"

#include "io/http/admin_server.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <fstream>
#include <iostream>

namespace rankwise::app {

namespace {

std::string read_token(const std::string& file) {
  std::string token;
  if (!file.empty())
    std::ifstream{file} >> token;
  return token;
}

node_client::answer judge(const node_client& client, const io::http_answer& from) {
  node_client::answer result;
  result.body = from.body;
  result.json = nlohmann::json::parse(from.body, nullptr, false);
  if (from.status == 200)
    return result;
  if (from.status == 0) {
    std::cerr << "rankwise " << client.command << ": no node answers at " << client.admin << " (" << from.body << ")\n";
    result.exit_code = exit_no_answer;
    return result;
  }
  const auto text = result.json.is_object() ? result.json.value("text", from.body) : from.body;
  std::cerr << "rankwise " << client.command << ": " << text << (text.ends_with("\n") ? "" : "\n");
  result.exit_code = from.status == 503 ? exit_no_answer : exit_refused;
  return result;
}

} // namespace

void node_client::add_options(CLI::App& command_line, const std::string& example, bool writes) {
  command_line.add_option("--admin", admin, "the node's admin address")->capture_default_str();
  command_line.add_flag("--json", as_json, "the answer as it came");
  if (writes)
    command_line.add_option("--token-file", token_file, "bearer token, needed when this machine is not the node's")
        ->check(CLI::ExistingFile);
  command_line.footer("Example: rankwise " + example);
}

node_client::answer node_client::get(const std::string& path) const {
  return judge(*this, io::http_get(admin, path));
}

node_client::answer node_client::post(const std::string& path) const {
  return judge(*this, io::http_post(admin, path, 5, read_token(token_file)));
}

std::string percent_encoded(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~';
    if (plain)
      result += c;
    else
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return result;
}

rank_name split_rank_name(const std::string& text) {
  const auto slash = text.rfind('/');
  if (slash == std::string::npos)
    return {"", text};
  return {text.substr(0, slash), text.substr(slash + 1)};
}

} // namespace rankwise::app
