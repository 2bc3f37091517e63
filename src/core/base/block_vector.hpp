#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace rankwise::core {

/// Hash tables of requests are made with room for so many at most: up to there none rehashes inside a handler.
inline constexpr std::uint32_t requests_reserved_max = 1u << 17;

/// A vector that grows without moving what it holds: one that doubles at 65,536 slots stops its owner for tens of
/// milliseconds, in which no token is delivered.
template <class T>
class block_vector {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  T& operator[](std::size_t i) { return blocks_[i / block_size][i % block_size]; }
  const T& operator[](std::size_t i) const { return blocks_[i / block_size][i % block_size]; }

  T& emplace_back() {
    if (size_ % block_size == 0)
      blocks_.push_back(std::make_unique<T[]>(block_size));
    return (*this)[size_++];
  }

 private:
  static constexpr std::size_t block_size = 256;
  std::vector<std::unique_ptr<T[]>> blocks_;
  std::size_t size_ = 0;
};

} // namespace rankwise::core
