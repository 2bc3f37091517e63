#include "app/cli/node_client.hpp"
#include "app/cli/view_commands.hpp"
#include "app/options/option_checks.hpp"

#include <CLI/CLI.hpp>
#include <fmt/color.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <thread>

namespace rankwise::app {

namespace {

using json = nlohmann::json;

constexpr std::size_t width = 80;
constexpr std::size_t events_shown = 6;

fmt::text_style style_of(const std::string& state) {
  using fmt::terminal_color;
  if (state == "ready" || state == "running")
    return fmt::fg(terminal_color::green);
  if (state == "down" || state == "parked")
    return fmt::fg(terminal_color::red) | fmt::emphasis::bold;
  if (state == "draining" || state == "drained")
    return fmt::fg(terminal_color::magenta);
  return fmt::fg(terminal_color::yellow);
}

class screen {
 public:
  explicit screen(bool colour) : colour_(colour) {}

  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), text, std::forward<Args>(args)...);
  }
  void styled(const std::string& text, fmt::text_style style) {
    text_ += colour_ ? fmt::format(style, "{}", text) : text;
  }
  void end_line() { text_ += "\n"; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  bool colour_;
  std::string text_;
};

std::string bar(double share, std::size_t cells) {
  const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(cells) + 0.5);
  return std::string(full, '#') + std::string(cells - full, '.');
}

std::string cut(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 1) + "~";
}

void draw(screen& s, const json& status, const json& ranks, const json& events, double tokens_per_s) {
  const bool ready = status["ready"].get<bool>();
  s.styled(ready ? "ready" : cut("not ready: " + status["not_ready_reason"].get<std::string>(), width),
           style_of(ready ? "ready" : "down"));
  if (status["degraded"].get<bool>())
    s.styled(cut(", degraded: " + status["degraded_reason"].get<std::string>(), width - 6), style_of("suspect"));
  s.end_line();
  const auto& r = status["requests"];
  const auto n = [&](const char* name) { return r[name].get<std::uint64_t>(); };
  s.add("{} in flight  {:.0f} tokens/s  {} done  {} failed  {} cancelled  {} refused\n\n", n("in_flight"), tokens_per_s,
        n("completed"), n("failed"), n("cancelled"), n("refused"));
  s.add("{:<14} {:<9} {:>5} {:>5} {:>8}  {:<20} {:>5} {:>6}\n", "RANK", "STATE", "EPOCH", "REQ", "PREFILL", "KV", "%",
        "REPORT");
  for (const auto& pool : ranks["pools"]) {
    for (const auto& rank : pool["ranks"]) {
      const auto state = rank["state"].get<std::string>();
      s.add("{:<14} ", cut(pool["pool"].get<std::string>() + "/" + std::to_string(rank["rank"].get<int>()), 14));
      s.styled(fmt::format("{:<9}", rank.value("ejected", false) ? "ejected" : state),
               style_of(rank.value("ejected", false) ? "suspect" : state));
      const auto kv = rank["kv_share"].get<double>();
      s.add(" {:>5} {:>5} {:>8}  ", rank["epoch"].get<int>(), rank["requests"].get<int>(),
            rank["prefill_tokens"].get<std::uint64_t>());
      s.styled(bar(kv, 20), style_of(kv > 0.95 ? "down" : kv > 0.8 ? "suspect" : "ready"));
      s.add(" {:>5.1f} {:>6}\n", 100 * kv,
            rank["report"].is_null() ? "none" : fmt::format("{:.1f}s", rank["report"]["age_s"].get<double>()));
    }
  }
  s.end_line();
  const auto count = events.size();
  for (std::size_t i = count > events_shown ? count - events_shown : 0; i < count; ++i) {
    const auto& e = events[i];
    s.add("{}\n",
          cut(fmt::format("{} {} {}: {}", e["at"].get<std::string>().substr(11, 8), e["subject"].get<std::string>(),
                          e["change"].get<std::string>(), e["cause"].get<std::string>()),
              width));
  }
}

std::string with_cleared_ends(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '\n' ? std::string{"\033[K\n"} : std::string{c};
  return result;
}

int run_top(const node_client& client, double interval_s, bool once) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  std::uint64_t tokens_before = 0;
  auto before = std::chrono::steady_clock::now();
  for (bool first = true;; first = false) {
    const auto status = client.get("/status");
    const auto ranks = status.exit_code == exit_done ? client.get("/ranks") : status;
    const auto events = ranks.exit_code == exit_done ? client.get("/events") : ranks;
    if (events.exit_code != exit_done && (first || once))
      return events.exit_code;
    screen s{terminal};
    if (events.exit_code == exit_done) {
      const auto now = std::chrono::steady_clock::now();
      const auto tokens = status.json["requests"].value("tokens_delivered", std::uint64_t{0});
      const double seconds = std::chrono::duration<double>(now - before).count();
      draw(s, status.json, ranks.json, events.json["events"],
           first || tokens < tokens_before ? 0 : static_cast<double>(tokens - tokens_before) / seconds);
      tokens_before = tokens;
      before = now;
    } else {
      s.add("no node answers at {}\n", client.admin);
    }
    // Home, each line cleared behind its text, then what was below: redrawing without a flash.
    if (terminal && !once)
      fmt::print("\033[H{}\033[J", with_cleared_ends(s.text()));
    else
      fmt::print("{}", s.text());
    std::fflush(stdout);
    if (once)
      return exit_done;
    std::this_thread::sleep_for(std::chrono::duration<double>{interval_s});
  }
}

} // namespace

void add_top_command(CLI::App& app, int& exit_code) {
  auto* sub = app.add_subcommand("top", "Ranks of a running node, live");
  auto client = std::make_shared<node_client>("top");
  auto interval = std::make_shared<double>(1);
  auto once = std::make_shared<bool>(false);
  sub->add_option("--admin", client->admin, "the node's admin address")->capture_default_str();
  as_duration(sub->add_option("--interval", *interval, "time between two looks"), {.least_s = 0.1, .most_s = 60})
      ->capture_default_str();
  sub->add_flag("--once", *once, "one look, then end");
  sub->footer("Example: rankwise top --admin 127.0.0.1:30002");
  sub->callback([=, &exit_code] { exit_code = run_top(*client, *interval, *once); });
}

} // namespace rankwise::app
