// One subject's use and quota of a store: one account for all workers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::kv {

/// The quota that refuses something.
enum class Quota : std::uint8_t { kNone = 0, kMemory = 1, kItems = 2 };

/// Memory and items of a subject.
struct Holding {
  std::uint64_t bytes = 0;
  std::uint64_t items = 0;
};

/// Workers share it: a quota holds for the subject, on whichever workers its keys are. If two workers charge it at the
/// same moment, both may be refused although one of them could have succeeded. Usage never exceeds the quota, except by
/// items about to replace others. \thread any  \alloc none
class alignas(64) Account {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  using Amount = Holding;

  /// Sets the quota. \thread setup
  void limit(Amount most) noexcept { most_ = most; }
  [[nodiscard]] Amount most() const noexcept { return most_; }
  [[nodiscard]] Amount used() const noexcept {
    return {bytes_.load(std::memory_order_relaxed), items_.load(std::memory_order_relaxed)};
  }

  /// Charges `amount` unless it exceeds the quota. `replaced` is the subject's own; the change being charged for gives
  /// it back.
  [[nodiscard]] Quota charge(Amount amount, Amount replaced = {}) noexcept {
    const std::uint64_t bytes = bytes_.fetch_add(amount.bytes, std::memory_order_relaxed) + amount.bytes;
    const std::uint64_t items = items_.fetch_add(amount.items, std::memory_order_relaxed) + amount.items;
    const bool is_long = exceeds(bytes, replaced.bytes, most_.bytes);
    if (!is_long && !exceeds(items, replaced.items, most_.items)) [[likely]]
      return Quota::kNone;
    give_back(amount);
    return is_long ? Quota::kMemory : Quota::kItems;
  }
  void give_back(Amount amount) noexcept {
    bytes_.fetch_sub(amount.bytes, std::memory_order_relaxed);
    items_.fetch_sub(amount.items, std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] static constexpr bool exceeds(std::uint64_t all, std::uint64_t replaced, std::uint64_t most) noexcept {
    return all > replaced && all - replaced > most;
  }

  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> items_{0};
  Amount most_{.bytes = kUnlimited, .items = kUnlimited};
};

/// An item's owner: an account's number, from 1; 0 for everybody without an account.
using Owner = std::uint16_t;
inline constexpr Owner kNoOwner = 0;

/// All accounts of a server, by owner; the first has number 1.
using Accounts = std::span<Account>;

}  // namespace verbena::kv
