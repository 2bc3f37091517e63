#include "app/options/option_checks.hpp"

namespace rankwise::app {

namespace {

template <class Accepts>
CLI::Validator checked_number(Accepts accepts, const std::string& range) {
  return {[=](std::string& text) {
            const auto value = parse_number(text);
            return value && accepts(*value) ? std::string{} : fmt::format("\"{}\" is not a number {}", text, range);
          },
          range};
}

} // namespace

CLI::Validator number(double least, double most) {
  return checked_number([=](double x) { return x >= least && x <= most; },
                        fmt::format("from {} to {}", plain_digits(least), plain_digits(most)));
}

CLI::Validator number_above(double bound) {
  return checked_number([=](double x) { return x > bound; }, "above " + plain_digits(bound));
}

CLI::Validator number_from(double least) {
  return checked_number([=](double x) { return x >= least; }, fmt::format("of {} or more", plain_digits(least)));
}

CLI::Option* as_duration(CLI::Option* option, duration_range range) {
  const auto limits = fmt::format("from {} to {}", duration_text(range.least_s), duration_text(range.most_s));
  const auto notation = duration_notation(range.unit);
  const auto read = [=](std::string& text) {
    const auto value = parse_duration(text, range.unit);
    const auto seconds = to_seconds(value.value_or(-1), range.unit);
    if (!value || seconds < range.least_s || seconds > range.most_s)
      return fmt::format("\"{}\" is not a duration {}: {}", text, limits, notation);
    text = plain_digits(*value);
    return std::string{};
  };
  return option->transform(CLI::Validator{read, ""})
      ->type_name("DURATION")
      ->description(fmt::format("{} ({})", option->get_description(), notation));
}

} // namespace rankwise::app
