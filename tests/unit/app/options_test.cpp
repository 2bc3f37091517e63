#include "app/commands.hpp"

#include <CLI/CLI.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

/// The options of every command of the program.
namespace rankwise::app {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class options : public testing::Test {
 protected:
  options() {
    program.require_subcommand(1);
    add_all_commands(program, exit_code);
  }

  using visitor = std::function<void(const std::string& command, CLI::Option& option)>;
  void each(const visitor& visit) { each_of(program, "", visit); }

  /// What the program says to a command line that it refuses; empty when it was taken.
  std::string complaint(const std::string& command_line) {
    CLI::App fresh;
    int code = 0;
    add_all_commands(fresh, code);
    try {
      fresh.parse(command_line);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return {};
  }

  CLI::App program;
  int exit_code = 0;

 private:
  static void each_of(CLI::App& app, const std::string& name, const visitor& visit) {
    for (auto* option : app.get_options())
      visit(name, *option);
    for (auto* sub : app.get_subcommands([](CLI::App*) { return true; }))
      each_of(*sub, name.empty() ? sub->get_name() : name + " " + sub->get_name(), visit);
  }
};

bool is_number(const CLI::Option& option) {
  const auto type = option.get_type_name();
  return type.starts_with("UINT") || type.starts_with("INT") || type.starts_with("FLOAT") ||
         type.starts_with("DURATION");
}

TEST_F(options, with_a_number_name_option_value_and_range_in_plain_digits) {
  int seen = 0;
  each([&](const std::string& command, CLI::Option& option) {
    if (!is_number(option))
      return;
    ++seen;
    const auto name = option.get_name();
    const auto plain = [&](const std::string& text) {
      EXPECT_THAT(text, ContainsRegex("is not a .*(from|of|above) [0-9]")) << command << " " << name;
      EXPECT_THAT(text.substr(text.find("is not")), Not(ContainsRegex("[0-9]e[+0-9]"))) << command << " " << name;
      EXPECT_LT(text.size(), 200) << command << " " << name;
    };
    const auto text = complaint(command + " " + name + " 8x");
    EXPECT_THAT(text, HasSubstr(name + ": \"8x\" is not a ")) << command;
    plain(text);
    std::string too_much = "1e999";
    plain((*option.get_validator(0))(too_much));
  });
  EXPECT_GT(seen, 60);
}

TEST_F(options, that_are_times_take_every_unit_and_say_so_in_their_help) {
  int seen = 0;
  each([&](const std::string& command, CLI::Option& option) {
    const auto where = command + " " + option.get_name();
    if (!option.get_type_name().starts_with("DURATION")) {
      EXPECT_THAT(option.get_description(), Not(ContainsRegex("^([Ss]econds|[Ll]ength) ")))
          << where << " is a time, and no duration";
      return;
    }
    ++seen;
    EXPECT_THAT(option.get_description(), HasSubstr("a number with us, ms, s, m or h; alone it is ")) << where;
    const auto taken = [&](std::string text) {
      const auto said = (*option.get_validator(0))(text);
      EXPECT_EQ(said, "") << where;
      return text;
    };
    EXPECT_EQ(taken("500ms"), taken("0.5s")) << where;
    EXPECT_EQ(taken("60s"), taken("1m")) << where;
    if (option.get_name() != "--interval") { // a minute is its longest
      EXPECT_EQ(taken("90m"), taken("1.5h")) << where;
    }
    EXPECT_EQ(taken(option.get_name().ends_with("-ms") ? "500" : "0.5"),
              option.get_name().ends_with("-us") ? "0.5" : taken("500ms"))
        << where;
  });
  EXPECT_GE(seen, 18);
}

TEST_F(options, that_are_times_name_their_range) {
  EXPECT_EQ(complaint("drain 0 --deadline 8x"),
            "--deadline: \"8x\" is not a duration from 0s to 10000000s: a number with "
            "us, ms, s, m or h; alone it is seconds");
  EXPECT_THAT(complaint("top --interval 2m"), HasSubstr("\"2m\" is not a duration from 100ms to 60s"));
  EXPECT_THAT(complaint("sim --report-ms 0"), HasSubstr("\"0\" is not a duration from 1us to 86400000s"));
}

TEST_F(options, with_a_whole_number_read_it_as_people_do) {
  EXPECT_EQ(complaint("node --ranks 70000"), "--ranks: \"70000\" is not a whole number from 1 to 1024");
  EXPECT_THAT(complaint("node --ranks 0x10"), HasSubstr("\"0x10\" is not a whole number"));
  EXPECT_THAT(complaint("engine --first-rank -1"), HasSubstr("\"-1\" is not a whole number from 0 to 65535"));
}

} // namespace
} // namespace rankwise::app
