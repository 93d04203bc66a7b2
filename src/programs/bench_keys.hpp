// The keys of a bench, and the choice of the next one. Keys are made when they are needed: millions of stored ones
// would cost a cache miss each that is not the store's.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace verbena::programs {

/// xorshift64*. \thread owner
class Random {
 public:
  std::uint64_t next() noexcept {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1DU;
  }
  /// 0 to bound - 1, uniform except for what 64 bits cannot divide; 0 for a bound of 0.
  std::size_t below(std::size_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((Wide{next()} * bound) >> 64);
  }

 private:
  std::uint64_t state_ = 0x9E3779B97F4A7C15U;
};

/// Keys of one length: hexadecimal numbers, padded with `k` in front; the last digits if the length is below 16.
class BenchKeys {
 public:
  static constexpr std::size_t kDigits = 16;  ///< Digits of a 64-bit number.

  explicit BenchKeys(std::size_t key_bytes) : digits_(std::min(key_bytes, kDigits)), blank_(key_bytes, 'k') {}

  /// Content that a key's memory must have before the first `write` to it.
  [[nodiscard]] const std::string& blank() const noexcept { return blank_; }

  /// Writes the digits of key `index` to the key at `to`. \alloc none
  void write(std::size_t index, char* to) const noexcept {
    const std::uint64_t text[2] = {eight_digits(static_cast<std::uint32_t>(std::uint64_t{index} >> 32)),
                                   eight_digits(static_cast<std::uint32_t>(index))};
    char digits[kDigits];
    std::memcpy(digits, text, kDigits);
    if (digits_ == kDigits) {
      std::memcpy(to + blank_.size() - kDigits, digits, kDigits);  // A constant length is one instruction.
    } else {
      std::memcpy(to + blank_.size() - digits_, digits + kDigits - digits_, digits_);
    }
  }

 private:
  static_assert(std::endian::native == std::endian::little);

  /// The digits in memory order, the most significant first.
  static constexpr std::uint64_t eight_digits(std::uint32_t number) noexcept {
    std::uint64_t x = number;
    x = (x | x << 16) & 0x0000FFFF0000FFFFU;
    x = (x | x << 8) & 0x00FF00FF00FF00FFU;
    x = (x | x << 4) & 0x0F0F0F0F0F0F0F0FU;  // One digit per byte.
    const std::uint64_t is_letter = (x + 0x0606060606060606U) >> 4 & 0x0101010101010101U;
    return __builtin_bswap64(x + 0x3030303030303030U + is_letter * ('a' - '0' - 10));
  }

  std::size_t digits_;
  std::string blank_;
};

}  // namespace verbena::programs
