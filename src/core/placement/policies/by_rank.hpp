#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rankwise::core {

/// Values by rank number, made as ranks are seen; at most 65,536.
template <class T>
class by_rank {
 public:
  T& operator[](std::uint16_t rank) {
    if (rank >= values_.size())
      values_.resize(rank + std::size_t{1});
    return values_[rank];
  }
  /// Of a rank that was never seen: a value as it begins.
  [[nodiscard]] const T& find(std::uint16_t rank) const {
    static const T none{};
    return rank < values_.size() ? values_[rank] : none;
  }
  /// Those that were seen, in order.
  [[nodiscard]] auto begin() noexcept { return values_.begin(); }
  [[nodiscard]] auto end() noexcept { return values_.end(); }

 private:
  std::vector<T> values_;
};

} // namespace rankwise::core
