#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>

namespace rankwise::record {

/// The whole number of a field. Throws where it is missing, of another type, or does not fit: unlike json::get, which
/// cuts it.
template <class T>
[[nodiscard]] T number(const nlohmann::json& j, const char* field, T max = std::numeric_limits<T>::max()) {
  const auto& value = j.at(field);
  const auto fits = [&](auto v) { return std::in_range<T>(v) && std::cmp_less_equal(v, max); };
  if (!(value.is_number_unsigned() ? fits(value.template get<std::uint64_t>())
                                   : value.is_number_integer() && fits(value.template get<std::int64_t>())))
    throw std::runtime_error(fmt::format("{}: {} is not a whole number from {} to {}", field, value.dump(),
                                         std::numeric_limits<T>::min(), max));
  return value.template get<T>();
}

} // namespace rankwise::record
