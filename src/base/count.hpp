// Counts that one thread changes and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena {

/// Its writer uses a plain increment, without a locked instruction. Copies and reads are snapshots. \thread one writes,
/// any reads  \alloc none
class Count {
 public:
  constexpr Count() noexcept = default;
  Count(const Count& other) noexcept : value_(other) {}
  Count& operator=(const Count& other) noexcept { return *this = static_cast<std::uint64_t>(other); }
  Count& operator=(std::uint64_t value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): it reads as the number that it is.
  operator std::uint64_t() const noexcept { return value_.load(std::memory_order_relaxed); }
  Count& operator+=(std::uint64_t more) noexcept { return *this = *this + more; }
  Count& operator-=(std::uint64_t less) noexcept { return *this = *this - less; }
  Count& operator++() noexcept { return *this += 1; }
  Count& operator--() noexcept { return *this -= 1; }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace verbena
