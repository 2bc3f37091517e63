#pragma once

#include "core/load/load_report.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace rankwise::core {

/// The newest load report of every rank, shared between the receiver thread that writes it and whoever reads: one slot
/// per rank, newest wins, no lock, no allocation, nothing that can throw or block after construction.
///
/// Each slot is a sequence lock over relaxed atomics with one writer. A bitmap says which slots changed since the last
/// drain; `armed` makes the writers ask for one wake-up per drain. The reader disarms before it reads the bitmap, so a
/// report that comes in between asks for another wake-up: the newest report of a rank is never lost, intermediate ones
/// may be.
class load_board {
 public:
  explicit load_board(std::size_t slot_count)
      : slot_count_(slot_count), word_count_((slot_count + 63) / 64), slots_(std::make_unique<slot[]>(slot_count)),
        dirty_(std::make_unique<std::atomic<std::uint64_t>[]>(word_count_)) {}

  [[nodiscard]] std::size_t slot_count() const noexcept { return slot_count_; }

  /// Writer (one thread per slot). Returns true when the reader is to be woken. A slot beyond the board is ignored.
  bool publish(std::size_t index, const load_report& report) noexcept {
    if (index >= slot_count_)
      return false;
    store(index, report);
    slots_[index].forwarded.store(true, std::memory_order_relaxed);
    dirty_[index / 64].fetch_or(std::uint64_t{1} << (index % 64), std::memory_order_seq_cst);
    return !armed_.exchange(true, std::memory_order_seq_cst);
  }

  /// Writer: for those who read() only; the forwarding reader never sees it.
  void store(std::size_t index, const load_report& report) noexcept {
    if (index >= slot_count_)
      return;
    auto& s = slots_[index];
    const auto version = s.version.load(std::memory_order_relaxed);
    s.version.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const auto words = std::bit_cast<std::array<std::uint64_t, words_per_report>>(report);
    for (std::size_t i = 0; i < words_per_report; ++i)
      s.words[i].store(words[i], std::memory_order_relaxed);
    s.version.store(version + 2, std::memory_order_release);
  }

  /// Any reader, any time. False when nothing was published yet.
  bool read(std::size_t index, load_report& out) const noexcept {
    if (index >= slot_count_)
      return false;
    const auto& s = slots_[index];
    std::array<std::uint64_t, words_per_report> words;
    for (;;) {
      const auto before = s.version.load(std::memory_order_acquire);
      if (before == 0)
        return false;
      if (before % 2 != 0)
        continue; // the writer is inside; it holds no lock and leaves within nanoseconds
      for (std::size_t i = 0; i < words_per_report; ++i)
        words[i] = s.words[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (s.version.load(std::memory_order_relaxed) == before)
        break;
    }
    out = std::bit_cast<load_report>(words);
    return true;
  }

  /// The one forwarding reader: calls `take(index, report)` for every slot that changed since the last drain.
  template <class Take>
  std::size_t drain(Take&& take) {
    armed_.store(false, std::memory_order_seq_cst);
    std::size_t count = 0;
    for (std::size_t w = 0; w < word_count_; ++w) {
      auto bits = dirty_[w].exchange(0, std::memory_order_seq_cst);
      while (bits != 0) {
        const auto index = w * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        bits &= bits - 1;
        load_report report;
        if (read(index, report)) {
          take(index, report);
          ++count;
        }
      }
    }
    return count;
  }

  /// Marks every slot that was ever published as changed; a restarted reader calls it, since its predecessor may have
  /// drained reports that it did not live to forward.
  void mark_all_dirty() noexcept {
    for (std::size_t i = 0; i < slot_count_; ++i)
      if (slots_[i].forwarded.load(std::memory_order_relaxed))
        dirty_[i / 64].fetch_or(std::uint64_t{1} << (i % 64), std::memory_order_seq_cst);
  }

 private:
  static_assert(std::is_trivially_copyable_v<load_report>);
  static_assert(sizeof(load_report) % sizeof(std::uint64_t) == 0);
  static constexpr std::size_t words_per_report = sizeof(load_report) / sizeof(std::uint64_t);

  struct alignas(64) slot {
    std::atomic<std::uint64_t> version{0};
    std::array<std::atomic<std::uint64_t>, words_per_report> words{};
    std::atomic<bool> forwarded{false}; // ever published
  };

  std::size_t slot_count_;
  std::size_t word_count_;
  std::unique_ptr<slot[]> slots_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> dirty_;
  std::atomic<bool> armed_{false};
};

} // namespace rankwise::core
